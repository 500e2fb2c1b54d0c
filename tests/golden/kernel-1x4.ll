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
  %"index" = phi  i64 [0, %"entry"], [%".243", %"carried.done.4.endif"]
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
  %".130" = sdiv i64 %"k", 1
  %".131" = add i64 %".130", 16
  %".132" = sub i64 %".131", 1
  %".133" = sdiv i64 %".132", 16
  %".134" = icmp sgt i64 %".133", 0
  br i1 %".134", label %"carried.body.2", label %"carried.done.2"
loop.body.endif:
  %".203" = phi  i64 [%".128", %"carried.done"], [%".201", %"carried.done.2"]
  %".204" = phi  ptr [%".125", %"carried.done"], [%".198", %"carried.done.2"]
  %".205" = phi  ptr [%".127", %"carried.done"], [%".199", %"carried.done.2"]
  %".206" = phi  <4 x float> [%".122", %"carried.done"], [%".200", %"carried.done.2"]
  %".207" = icmp sgt i64 %".203", 0
  br i1 %".207", label %"carried.body.4", label %"carried.done.4"
carried.body:
  %".62" = phi  i64 [0, %"loop.body.if"], [%".115", %"carried.done.1"]
  %".63" = phi  ptr [%".46", %"loop.body.if"], [%".76", %"carried.done.1"]
  %".64" = phi  ptr [%".51", %"loop.body.if"], [%".85", %"carried.done.1"]
  %".65" = phi  ptr [%".22", %"loop.body.if"], [%".113", %"carried.done.1"]
  %".66" = phi  ptr [%".24", %"loop.body.if"], [%".114", %"carried.done.1"]
  %".67" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".112", %"carried.done.1"]
  %".68" = mul i64 8, %".41"
  br label %"loop.head.1"
carried.done:
  %".118" = phi  ptr [%".46", %"loop.body.if"], [%".76", %"carried.done.1"]
  %".119" = phi  ptr [%".51", %"loop.body.if"], [%".85", %"carried.done.1"]
  %".120" = phi  ptr [%".22", %"loop.body.if"], [%".113", %"carried.done.1"]
  %".121" = phi  ptr [%".24", %"loop.body.if"], [%".114", %"carried.done.1"]
  %".122" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".112", %"carried.done.1"]
  %".123" = mul i64 %".57", 8
  %".124" = mul i64 %".123", 4
  %".125" = getelementptr i8, ptr %".22", i64 %".124"
  %".126" = mul i64 %".123", 16
  %".127" = getelementptr i8, ptr %".24", i64 %".126"
  %".128" = sub i64 %"k", %".123"
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
  %".86" = icmp sgt i64 8, 0
  br i1 %".86", label %"carried.body.1", label %"carried.done.1"
carried.body.1:
  %".88" = phi  i64 [0, %"loop.done.1"], [%".107", %"carried.body.1"]
  %".89" = phi  ptr [%".65", %"loop.done.1"], [%".105", %"carried.body.1"]
  %".90" = phi  ptr [%".66", %"loop.done.1"], [%".106", %"carried.body.1"]
  %".91" = phi  <4 x float> [%".67", %"loop.done.1"], [%".104", %"carried.body.1"]
  %".92" = getelementptr i8, ptr %".90", i64 512
  %".93" = getelementptr i8, ptr %".92", i64 0
  call void @"llvm.prefetch.p0"(ptr %".93", i32 0, i32 3, i32 1)
  %".95" = getelementptr i8, ptr %".90", i64 0
  %".96" = getelementptr i8, ptr %".95", i64 0
  %".97" = load <4 x float>, ptr %".96", align 4
  %".98" = getelementptr i8, ptr %".89", i64 0
  %".99" = getelementptr i8, ptr %".98", i64 0
  %".100" = load float, ptr %".99", align 4
  %".101" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".100", i32 0
  %".102" = shufflevector <4 x float> %".101", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".103" = fmul <4 x float> %".102", %".97"
  %".104" = fadd <4 x float> %".103", %".91"
  %".105" = getelementptr i8, ptr %".89", i64 %".58"
  %".106" = getelementptr i8, ptr %".90", i64 %".59"
  %".107" = add i64 %".88", 1
  %".108" = icmp slt i64 %".107", 8
  br i1 %".108", label %"carried.body.1", label %"carried.done.1"
carried.done.1:
  %".110" = phi  ptr [%".65", %"loop.done.1"], [%".105", %"carried.body.1"]
  %".111" = phi  ptr [%".66", %"loop.done.1"], [%".106", %"carried.body.1"]
  %".112" = phi  <4 x float> [%".67", %"loop.done.1"], [%".104", %"carried.body.1"]
  %".113" = getelementptr i8, ptr %".65", i64 4
  %".114" = getelementptr i8, ptr %".66", i64 16
  %".115" = add i64 %".62", 1
  %".116" = icmp slt i64 %".115", %".57"
  br i1 %".116", label %"carried.body", label %"carried.done"
carried.body.2:
  %".136" = phi  i64 [0, %"loop.body.else"], [%".192", %"carried.done.3"]
  %".137" = phi  i64 [%".130", %"loop.body.else"], [%".191", %"carried.done.3"]
  %".138" = phi  ptr [%".46", %"loop.body.else"], [%".154", %"carried.done.3"]
  %".139" = phi  ptr [%".51", %"loop.body.else"], [%".163", %"carried.done.3"]
  %".140" = phi  ptr [%".22", %"loop.body.else"], [%".188", %"carried.done.3"]
  %".141" = phi  ptr [%".24", %"loop.body.else"], [%".189", %"carried.done.3"]
  %".142" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".190", %"carried.done.3"]
  %".143" = icmp sgt i64 %".137", 16
  %".144" = select  i1 %".143", i64 16, i64 %".137"
  %".145" = mul i64 %".144", 1
  %".146" = mul i64 %".145", %".41"
  br label %"loop.head.3"
carried.done.2:
  %".195" = phi  i64 [%".130", %"loop.body.else"], [%".191", %"carried.done.3"]
  %".196" = phi  ptr [%".46", %"loop.body.else"], [%".154", %"carried.done.3"]
  %".197" = phi  ptr [%".51", %"loop.body.else"], [%".163", %"carried.done.3"]
  %".198" = phi  ptr [%".22", %"loop.body.else"], [%".188", %"carried.done.3"]
  %".199" = phi  ptr [%".24", %"loop.body.else"], [%".189", %"carried.done.3"]
  %".200" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".190", %"carried.done.3"]
  %".201" = srem i64 %"k", 1
  br label %"loop.body.endif"
loop.head.3:
  %"index.3" = phi  i64 [0, %"carried.body.2"], [%".151", %"loop.body.3"]
  %".148" = icmp slt i64 %"index.3", %".146"
  br i1 %".148", label %"loop.body.3", label %"loop.done.2"
loop.body.3:
  %".149" = getelementptr i8, ptr %".138", i64 %"index.3"
  call void @"llvm.prefetch.p0"(ptr %".149", i32 0, i32 2, i32 1)
  %".151" = add nsw i64 %"index.3", 64
  br label %"loop.head.3"
loop.done.2:
  %".154" = getelementptr i8, ptr %".138", i64 %".146"
  %".155" = mul i64 %".145", %".50"
  br label %"loop.head.4"
loop.head.4:
  %"index.4" = phi  i64 [0, %"loop.done.2"], [%".160", %"loop.body.4"]
  %".157" = icmp slt i64 %"index.4", %".155"
  br i1 %".157", label %"loop.body.4", label %"loop.done.3"
loop.body.4:
  %".158" = getelementptr i8, ptr %".139", i64 %"index.4"
  call void @"llvm.prefetch.p0"(ptr %".158", i32 0, i32 2, i32 1)
  %".160" = add nsw i64 %"index.4", 64
  br label %"loop.head.4"
loop.done.3:
  %".163" = getelementptr i8, ptr %".139", i64 %".155"
  %".164" = getelementptr i8, ptr %".140", i64 0
  %".165" = getelementptr i8, ptr %".164", i64 64
  call void @"llvm.prefetch.p0"(ptr %".165", i32 0, i32 3, i32 1)
  %".167" = icmp sgt i64 %".144", 0
  br i1 %".167", label %"carried.body.3", label %"carried.done.3"
carried.body.3:
  %".169" = phi  i64 [0, %"loop.done.3"], [%".185", %"carried.body.3"]
  %".170" = phi  ptr [%".140", %"loop.done.3"], [%".183", %"carried.body.3"]
  %".171" = phi  ptr [%".141", %"loop.done.3"], [%".184", %"carried.body.3"]
  %".172" = phi  <4 x float> [%".142", %"loop.done.3"], [%".182", %"carried.body.3"]
  %".173" = getelementptr i8, ptr %".171", i64 0
  %".174" = getelementptr i8, ptr %".173", i64 0
  %".175" = load <4 x float>, ptr %".174", align 4
  %".176" = getelementptr i8, ptr %".170", i64 0
  %".177" = getelementptr i8, ptr %".176", i64 0
  %".178" = load float, ptr %".177", align 4
  %".179" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".178", i32 0
  %".180" = shufflevector <4 x float> %".179", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".181" = fmul <4 x float> %".180", %".175"
  %".182" = fadd <4 x float> %".181", %".172"
  %".183" = getelementptr i8, ptr %".170", i64 4
  %".184" = getelementptr i8, ptr %".171", i64 16
  %".185" = add i64 %".169", 1
  %".186" = icmp slt i64 %".185", %".144"
  br i1 %".186", label %"carried.body.3", label %"carried.done.3"
carried.done.3:
  %".188" = phi  ptr [%".140", %"loop.done.3"], [%".183", %"carried.body.3"]
  %".189" = phi  ptr [%".141", %"loop.done.3"], [%".184", %"carried.body.3"]
  %".190" = phi  <4 x float> [%".142", %"loop.done.3"], [%".182", %"carried.body.3"]
  %".191" = sub i64 %".137", %".144"
  %".192" = add i64 %".136", 1
  %".193" = icmp slt i64 %".192", %".133"
  br i1 %".193", label %"carried.body.2", label %"carried.done.2"
carried.body.4:
  %".209" = phi  i64 [0, %"loop.body.endif"], [%".225", %"carried.body.4"]
  %".210" = phi  ptr [%".204", %"loop.body.endif"], [%".223", %"carried.body.4"]
  %".211" = phi  ptr [%".205", %"loop.body.endif"], [%".224", %"carried.body.4"]
  %".212" = phi  <4 x float> [%".206", %"loop.body.endif"], [%".222", %"carried.body.4"]
  %".213" = getelementptr i8, ptr %".211", i64 0
  %".214" = getelementptr i8, ptr %".213", i64 0
  %".215" = load <4 x float>, ptr %".214", align 4
  %".216" = getelementptr i8, ptr %".210", i64 0
  %".217" = getelementptr i8, ptr %".216", i64 0
  %".218" = load float, ptr %".217", align 4
  %".219" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".218", i32 0
  %".220" = shufflevector <4 x float> %".219", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".221" = fmul <4 x float> %".220", %".215"
  %".222" = fadd <4 x float> %".221", %".212"
  %".223" = getelementptr i8, ptr %".210", i64 4
  %".224" = getelementptr i8, ptr %".211", i64 16
  %".225" = add i64 %".209", 1
  %".226" = icmp slt i64 %".225", %".203"
  br i1 %".226", label %"carried.body.4", label %"carried.done.4"
carried.done.4:
  %".228" = phi  ptr [%".204", %"loop.body.endif"], [%".223", %"carried.body.4"]
  %".229" = phi  ptr [%".205", %"loop.body.endif"], [%".224", %"carried.body.4"]
  %".230" = phi  <4 x float> [%".206", %"loop.body.endif"], [%".222", %"carried.body.4"]
  %".231" = mul i64 %".11", 0
  %".232" = getelementptr i8, ptr %".28", i64 %".231"
  %".233" = getelementptr i8, ptr %".232", i64 0
  %".234" = getelementptr i8, ptr %"context", i64 40
  %".235" = load i64, ptr %".234"
  %".236" = icmp ne i64 %".235", 0
  br i1 %".236", label %"carried.done.4.if", label %"carried.done.4.endif"
carried.done.4.if:
  %".238" = load <4 x float>, ptr %".233", align 4
  %".239" = fadd <4 x float> %".230", %".238"
  br label %"carried.done.4.endif"
carried.done.4.endif:
  %".241" = phi  <4 x float> [%".230", %"carried.done.4"], [%".239", %"carried.done.4.if"]
  store <4 x float> %".241", ptr %".233", align 4
  %".243" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.4:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

!0 = !{ !"branch_weights", i32 1, i32 99 }