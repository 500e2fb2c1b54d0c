; ModuleID = "kernel"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"gemm_float32_sse2_1x4_c1p1_row_packed_0f2816a5b58c"(ptr noalias %"context", ptr noalias %"a", ptr noalias %"b", ptr noalias %"c", i64 %"row", i64 %"column", i64 %"k", i64 %"tiles")
{
entry:
  %".10" = getelementptr i8, ptr %"context", i64 24
  %".11" = load i64, ptr %".10"
  %".12" = getelementptr i8, ptr %"context", i64 8
  %".13" = load i64, ptr %".12"
  %".14" = mul i64 %"tiles", 1
  br label %"loop.head"
loop.head:
  %"index" = phi  i64 [0, %"entry"], [%".235", %"carried.done.4.endif"]
  %".16" = icmp slt i64 %"index", %".14"
  br i1 %".16", label %"loop.body", label %"loop.done.4"
loop.body:
  %".17" = udiv i64 %"index", 1
  %".18" = urem i64 %"index", 1
  %".19" = mul i64 %".17", 1
  %".20" = mul i64 %".18", 4
  %".21" = mul i64 %".17", %".13"
  %".22" = getelementptr i8, ptr %"a", i64 %".21"
  %".23" = mul i64 %".20", 4
  %".24" = getelementptr i8, ptr %"b", i64 %".23"
  %".25" = mul i64 %".19", %".11"
  %".26" = getelementptr i8, ptr %"c", i64 %".25"
  %".27" = mul i64 %".20", 4
  %".28" = getelementptr i8, ptr %".26", i64 %".27"
  %".29" = add i64 %"row", %".19"
  %".30" = add i64 %"column", %".20"
  %".31" = mul i64 %".11", 0
  %".32" = getelementptr i8, ptr %".28", i64 %".31"
  %".33" = getelementptr i8, ptr %".32", i64 0
  call void @"llvm.prefetch.p0"(ptr %".33", i32 1, i32 3, i32 1)
  %".35" = getelementptr i8, ptr %".32", i64 15
  call void @"llvm.prefetch.p0"(ptr %".35", i32 1, i32 3, i32 1)
  %".37" = getelementptr i8, ptr %"context", i64 0
  %".38" = load i64, ptr %".37"
  %".39" = getelementptr i8, ptr %"context", i64 64
  %".40" = load i64, ptr %".39"
  %".41" = udiv i64 %".40", 1
  %".42" = getelementptr i8, ptr %"context", i64 56
  %".43" = load ptr, ptr %".42"
  %".44" = mul i64 %"index", %"k"
  %".45" = mul i64 %".44", %".41"
  %".46" = getelementptr i8, ptr %".43", i64 %".45"
  %".47" = getelementptr i8, ptr %"context", i64 72
  %".48" = load i64, ptr %".47"
  %".49" = icmp ne i64 %".48", 0
  %".50" = select  i1 %".49", i64 4, i64 0
  %".51" = getelementptr i8, ptr %".22", i64 %".48"
  %".52" = getelementptr i8, ptr %"context", i64 80
  %".53" = load i64, ptr %".52"
  %".54" = mul i64 %".53", 1
  %".55" = icmp slt i64 %"index", %".54"
  br i1 %".55", label %"loop.body.if", label %"loop.body.else", !prof !0
loop.body.if:
  %".57" = sdiv i64 %"k", 8
  %".58" = mul i64 %".57", 4
  %".59" = mul i64 %".57", 16
  %".60" = icmp sgt i64 %".57", 0
  br i1 %".60", label %"carried.body", label %"carried.done"
loop.body.else:
  %".126" = sdiv i64 %"k", 1
  %".127" = add i64 %".126", 16
  %".128" = sub i64 %".127", 1
  %".129" = sdiv i64 %".128", 16
  %".130" = icmp sgt i64 %".129", 0
  br i1 %".130", label %"carried.body.2", label %"carried.done.2"
loop.body.endif:
  %".195" = phi  i64 [%".124", %"carried.done"], [%".193", %"carried.done.2"]
  %".196" = phi  ptr [%".121", %"carried.done"], [%".190", %"carried.done.2"]
  %".197" = phi  ptr [%".123", %"carried.done"], [%".191", %"carried.done.2"]
  %".198" = phi  <4 x float> [%".118", %"carried.done"], [%".192", %"carried.done.2"]
  %".199" = icmp sgt i64 %".195", 0
  br i1 %".199", label %"carried.body.4", label %"carried.done.4"
carried.body:
  %".62" = phi  i64 [0, %"loop.body.if"], [%".111", %"carried.done.1"]
  %".63" = phi  ptr [%".46", %"loop.body.if"], [%".76", %"carried.done.1"]
  %".64" = phi  ptr [%".51", %"loop.body.if"], [%".85", %"carried.done.1"]
  %".65" = phi  ptr [%".22", %"loop.body.if"], [%".109", %"carried.done.1"]
  %".66" = phi  ptr [%".24", %"loop.body.if"], [%".110", %"carried.done.1"]
  %".67" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".103", %"carried.done.1"]
  %".68" = mul i64 8, %".41"
  br label %"loop.head.1"
carried.done:
  %".114" = phi  ptr [%".46", %"loop.body.if"], [%".76", %"carried.done.1"]
  %".115" = phi  ptr [%".51", %"loop.body.if"], [%".85", %"carried.done.1"]
  %".116" = phi  ptr [%".22", %"loop.body.if"], [%".109", %"carried.done.1"]
  %".117" = phi  ptr [%".24", %"loop.body.if"], [%".110", %"carried.done.1"]
  %".118" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".103", %"carried.done.1"]
  %".119" = mul i64 %".57", 8
  %".120" = mul i64 %".119", 4
  %".121" = getelementptr i8, ptr %".22", i64 %".120"
  %".122" = mul i64 %".119", 16
  %".123" = getelementptr i8, ptr %".24", i64 %".122"
  %".124" = sub i64 %"k", %".119"
  br label %"loop.body.endif"
loop.head.1:
  %"index.1" = phi  i64 [0, %"carried.body"], [%".73", %"loop.body.1"]
  %".70" = icmp slt i64 %"index.1", %".68"
  br i1 %".70", label %"loop.body.1", label %"loop.done"
loop.body.1:
  %".71" = getelementptr i8, ptr %".63", i64 %"index.1"
  call void @"llvm.prefetch.p0"(ptr %".71", i32 0, i32 2, i32 1)
  %".73" = add nsw i64 %"index.1", 64
  br label %"loop.head.1"
loop.done:
  %".76" = getelementptr i8, ptr %".63", i64 %".68"
  %".77" = mul i64 8, %".50"
  br label %"loop.head.2"
loop.head.2:
  %"index.2" = phi  i64 [0, %"loop.done"], [%".82", %"loop.body.2"]
  %".79" = icmp slt i64 %"index.2", %".77"
  br i1 %".79", label %"loop.body.2", label %"loop.done.1"
loop.body.2:
  %".80" = getelementptr i8, ptr %".64", i64 %"index.2"
  call void @"llvm.prefetch.p0"(ptr %".80", i32 0, i32 2, i32 1)
  %".82" = add nsw i64 %"index.2", 64
  br label %"loop.head.2"
loop.done.1:
  %".85" = getelementptr i8, ptr %".64", i64 %".77"
  br label %"carried.body.1"
carried.body.1:
  %".87" = phi  i64 [0, %"loop.done.1"], [%".106", %"carried.body.1"]
  %".88" = phi  ptr [%".65", %"loop.done.1"], [%".104", %"carried.body.1"]
  %".89" = phi  ptr [%".66", %"loop.done.1"], [%".105", %"carried.body.1"]
  %".90" = phi  <4 x float> [%".67", %"loop.done.1"], [%".103", %"carried.body.1"]
  %".91" = getelementptr i8, ptr %".89", i64 512
  %".92" = getelementptr i8, ptr %".91", i64 0
  call void @"llvm.prefetch.p0"(ptr %".92", i32 0, i32 3, i32 1)
  %".94" = getelementptr i8, ptr %".89", i64 0
  %".95" = getelementptr i8, ptr %".94", i64 0
  %".96" = load <4 x float>, ptr %".95", align 4
  %".97" = getelementptr i8, ptr %".88", i64 0
  %".98" = getelementptr i8, ptr %".97", i64 0
  %".99" = load float, ptr %".98", align 4
  %".100" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".99", i32 0
  %".101" = shufflevector <4 x float> %".100", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".102" = fmul <4 x float> %".101", %".96"
  %".103" = fadd <4 x float> %".102", %".90"
  %".104" = getelementptr i8, ptr %".88", i64 %".58"
  %".105" = getelementptr i8, ptr %".89", i64 %".59"
  %".106" = add i64 %".87", 1
  %".107" = icmp slt i64 %".106", 8
  br i1 %".107", label %"carried.body.1", label %"carried.done.1"
carried.done.1:
  %".109" = getelementptr i8, ptr %".65", i64 4
  %".110" = getelementptr i8, ptr %".66", i64 16
  %".111" = add i64 %".62", 1
  %".112" = icmp slt i64 %".111", %".57"
  br i1 %".112", label %"carried.body", label %"carried.done"
carried.body.2:
  %".132" = phi  i64 [0, %"loop.body.else"], [%".184", %"carried.done.3"]
  %".133" = phi  i64 [%".126", %"loop.body.else"], [%".183", %"carried.done.3"]
  %".134" = phi  ptr [%".46", %"loop.body.else"], [%".150", %"carried.done.3"]
  %".135" = phi  ptr [%".51", %"loop.body.else"], [%".159", %"carried.done.3"]
  %".136" = phi  ptr [%".22", %"loop.body.else"], [%".178", %"carried.done.3"]
  %".137" = phi  ptr [%".24", %"loop.body.else"], [%".179", %"carried.done.3"]
  %".138" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".177", %"carried.done.3"]
  %".139" = icmp sgt i64 %".133", 16
  %".140" = select  i1 %".139", i64 16, i64 %".133"
  %".141" = mul i64 %".140", 1
  %".142" = mul i64 %".141", %".41"
  br label %"loop.head.3"
carried.done.2:
  %".187" = phi  i64 [%".126", %"loop.body.else"], [%".183", %"carried.done.3"]
  %".188" = phi  ptr [%".46", %"loop.body.else"], [%".150", %"carried.done.3"]
  %".189" = phi  ptr [%".51", %"loop.body.else"], [%".159", %"carried.done.3"]
  %".190" = phi  ptr [%".22", %"loop.body.else"], [%".178", %"carried.done.3"]
  %".191" = phi  ptr [%".24", %"loop.body.else"], [%".179", %"carried.done.3"]
  %".192" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".177", %"carried.done.3"]
  %".193" = srem i64 %"k", 1
  br label %"loop.body.endif"
loop.head.3:
  %"index.3" = phi  i64 [0, %"carried.body.2"], [%".147", %"loop.body.3"]
  %".144" = icmp slt i64 %"index.3", %".142"
  br i1 %".144", label %"loop.body.3", label %"loop.done.2"
loop.body.3:
  %".145" = getelementptr i8, ptr %".134", i64 %"index.3"
  call void @"llvm.prefetch.p0"(ptr %".145", i32 0, i32 2, i32 1)
  %".147" = add nsw i64 %"index.3", 64
  br label %"loop.head.3"
loop.done.2:
  %".150" = getelementptr i8, ptr %".134", i64 %".142"
  %".151" = mul i64 %".141", %".50"
  br label %"loop.head.4"
loop.head.4:
  %"index.4" = phi  i64 [0, %"loop.done.2"], [%".156", %"loop.body.4"]
  %".153" = icmp slt i64 %"index.4", %".151"
  br i1 %".153", label %"loop.body.4", label %"loop.done.3"
loop.body.4:
  %".154" = getelementptr i8, ptr %".135", i64 %"index.4"
  call void @"llvm.prefetch.p0"(ptr %".154", i32 0, i32 2, i32 1)
  %".156" = add nsw i64 %"index.4", 64
  br label %"loop.head.4"
loop.done.3:
  %".159" = getelementptr i8, ptr %".135", i64 %".151"
  %".160" = getelementptr i8, ptr %".136", i64 0
  %".161" = getelementptr i8, ptr %".160", i64 64
  call void @"llvm.prefetch.p0"(ptr %".161", i32 0, i32 3, i32 1)
  br label %"carried.body.3"
carried.body.3:
  %".164" = phi  i64 [0, %"loop.done.3"], [%".180", %"carried.body.3"]
  %".165" = phi  ptr [%".136", %"loop.done.3"], [%".178", %"carried.body.3"]
  %".166" = phi  ptr [%".137", %"loop.done.3"], [%".179", %"carried.body.3"]
  %".167" = phi  <4 x float> [%".138", %"loop.done.3"], [%".177", %"carried.body.3"]
  %".168" = getelementptr i8, ptr %".166", i64 0
  %".169" = getelementptr i8, ptr %".168", i64 0
  %".170" = load <4 x float>, ptr %".169", align 4
  %".171" = getelementptr i8, ptr %".165", i64 0
  %".172" = getelementptr i8, ptr %".171", i64 0
  %".173" = load float, ptr %".172", align 4
  %".174" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".173", i32 0
  %".175" = shufflevector <4 x float> %".174", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".176" = fmul <4 x float> %".175", %".170"
  %".177" = fadd <4 x float> %".176", %".167"
  %".178" = getelementptr i8, ptr %".165", i64 4
  %".179" = getelementptr i8, ptr %".166", i64 16
  %".180" = add i64 %".164", 1
  %".181" = icmp slt i64 %".180", %".140"
  br i1 %".181", label %"carried.body.3", label %"carried.done.3"
carried.done.3:
  %".183" = sub i64 %".133", %".140"
  %".184" = add i64 %".132", 1
  %".185" = icmp slt i64 %".184", %".129"
  br i1 %".185", label %"carried.body.2", label %"carried.done.2"
carried.body.4:
  %".201" = phi  i64 [0, %"loop.body.endif"], [%".217", %"carried.body.4"]
  %".202" = phi  ptr [%".196", %"loop.body.endif"], [%".215", %"carried.body.4"]
  %".203" = phi  ptr [%".197", %"loop.body.endif"], [%".216", %"carried.body.4"]
  %".204" = phi  <4 x float> [%".198", %"loop.body.endif"], [%".214", %"carried.body.4"]
  %".205" = getelementptr i8, ptr %".203", i64 0
  %".206" = getelementptr i8, ptr %".205", i64 0
  %".207" = load <4 x float>, ptr %".206", align 4
  %".208" = getelementptr i8, ptr %".202", i64 0
  %".209" = getelementptr i8, ptr %".208", i64 0
  %".210" = load float, ptr %".209", align 4
  %".211" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".210", i32 0
  %".212" = shufflevector <4 x float> %".211", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".213" = fmul <4 x float> %".212", %".207"
  %".214" = fadd <4 x float> %".213", %".204"
  %".215" = getelementptr i8, ptr %".202", i64 4
  %".216" = getelementptr i8, ptr %".203", i64 16
  %".217" = add i64 %".201", 1
  %".218" = icmp slt i64 %".217", %".195"
  br i1 %".218", label %"carried.body.4", label %"carried.done.4"
carried.done.4:
  %".220" = phi  ptr [%".196", %"loop.body.endif"], [%".215", %"carried.body.4"]
  %".221" = phi  ptr [%".197", %"loop.body.endif"], [%".216", %"carried.body.4"]
  %".222" = phi  <4 x float> [%".198", %"loop.body.endif"], [%".214", %"carried.body.4"]
  %".223" = mul i64 %".11", 0
  %".224" = getelementptr i8, ptr %".28", i64 %".223"
  %".225" = getelementptr i8, ptr %".224", i64 0
  %".226" = getelementptr i8, ptr %"context", i64 40
  %".227" = load i64, ptr %".226"
  %".228" = icmp ne i64 %".227", 0
  br i1 %".228", label %"carried.done.4.if", label %"carried.done.4.endif"
carried.done.4.if:
  %".230" = load <4 x float>, ptr %".225", align 4
  %".231" = fadd <4 x float> %".222", %".230"
  br label %"carried.done.4.endif"
carried.done.4.endif:
  %".233" = phi  <4 x float> [%".222", %"carried.done.4"], [%".231", %"carried.done.4.if"]
  store <4 x float> %".233", ptr %".225", align 4
  %".235" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.4:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

!0 = !{ !"branch_weights", i32 1, i32 99 }