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
  %"index" = phi  i64 [0, %"entry"], [%".231", %"carried.done.4.endif"]
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
  call void @"llvm.prefetch.p0"(ptr %".32", i32 1, i32 3, i32 1)
  %".34" = getelementptr i8, ptr %".32", i64 15
  call void @"llvm.prefetch.p0"(ptr %".34", i32 1, i32 3, i32 1)
  %".36" = load i64, ptr %"context"
  %".37" = getelementptr i8, ptr %"context", i64 64
  %".38" = load i64, ptr %".37"
  %".39" = udiv i64 %".38", 1
  %".40" = getelementptr i8, ptr %"context", i64 56
  %".41" = load ptr, ptr %".40"
  %".42" = mul i64 %"index", %"k"
  %".43" = mul i64 %".42", %".39"
  %".44" = getelementptr i8, ptr %".41", i64 %".43"
  %".45" = getelementptr i8, ptr %"context", i64 72
  %".46" = load i64, ptr %".45"
  %".47" = icmp ne i64 %".46", 0
  %".48" = select  i1 %".47", i64 4, i64 0
  %".49" = getelementptr i8, ptr %".22", i64 %".46"
  %".50" = getelementptr i8, ptr %"context", i64 80
  %".51" = load i64, ptr %".50"
  %".52" = mul i64 %".51", 1
  %".53" = icmp slt i64 %"index", %".52"
  br i1 %".53", label %"loop.body.if", label %"loop.body.else", !prof !0
loop.body.if:
  %".55" = getelementptr i8, ptr %"context", i64 88
  %".56" = load i64, ptr %".55"
  %".57" = sub i64 %".56", 0
  %".58" = icmp sgt i64 %".57", 0
  %".59" = select  i1 %".58", i64 %".57", i64 0
  %".60" = shl i64 1, %".59"
  %".61" = mul i64 %".60", 1
  %".62" = lshr i64 %"k", %".59"
  %".63" = udiv i64 %".62", 1
  %".64" = mul i64 %".63", 4
  %".65" = mul i64 %".63", 16
  %".66" = getelementptr i8, ptr %"context", i64 96
  %".67" = load i64, ptr %".66"
  %".68" = lshr i64 %".67", %".56"
  %".69" = icmp sgt i64 %".68", 16
  %".70" = select  i1 %".69", i64 %".68", i64 16
  %".71" = icmp sgt i64 %".63", 0
  br i1 %".71", label %"carried.body", label %"carried.done"
loop.body.else:
  %".132" = sdiv i64 %"k", 1
  %".133" = add i64 %".132", 8
  %".134" = sub i64 %".133", 1
  %".135" = sdiv i64 %".134", 8
  %".136" = icmp sgt i64 %".135", 0
  br i1 %".136", label %"carried.body.2", label %"carried.done.2"
loop.body.endif:
  %".196" = phi  i64 [%".130", %"carried.done"], [%".194", %"carried.done.2"]
  %".197" = phi  ptr [%".127", %"carried.done"], [%".191", %"carried.done.2"]
  %".198" = phi  ptr [%".129", %"carried.done"], [%".192", %"carried.done.2"]
  %".199" = phi  <4 x float> [%".124", %"carried.done"], [%".193", %"carried.done.2"]
  %".200" = icmp sgt i64 %".196", 0
  br i1 %".200", label %"carried.body.4", label %"carried.done.4"
carried.body:
  %".73" = phi  i64 [0, %"loop.body.if"], [%".117", %"carried.done.1"]
  %".74" = phi  ptr [%".44", %"loop.body.if"], [%".87", %"carried.done.1"]
  %".75" = phi  ptr [%".49", %"loop.body.if"], [%".96", %"carried.done.1"]
  %".76" = phi  ptr [%".22", %"loop.body.if"], [%".115", %"carried.done.1"]
  %".77" = phi  ptr [%".24", %"loop.body.if"], [%".116", %"carried.done.1"]
  %".78" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".109", %"carried.done.1"]
  %".79" = mul i64 %".61", %".39"
  br label %"loop.head.1"
carried.done:
  %".120" = phi  ptr [%".44", %"loop.body.if"], [%".87", %"carried.done.1"]
  %".121" = phi  ptr [%".49", %"loop.body.if"], [%".96", %"carried.done.1"]
  %".122" = phi  ptr [%".22", %"loop.body.if"], [%".115", %"carried.done.1"]
  %".123" = phi  ptr [%".24", %"loop.body.if"], [%".116", %"carried.done.1"]
  %".124" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".109", %"carried.done.1"]
  %".125" = mul i64 %".63", %".61"
  %".126" = mul i64 %".125", 4
  %".127" = getelementptr i8, ptr %".22", i64 %".126"
  %".128" = mul i64 %".125", 16
  %".129" = getelementptr i8, ptr %".24", i64 %".128"
  %".130" = sub i64 %"k", %".125"
  br label %"loop.body.endif"
loop.head.1:
  %"index.1" = phi  i64 [0, %"carried.body"], [%".84", %"loop.body.1"]
  %".81" = icmp slt i64 %"index.1", %".79"
  br i1 %".81", label %"loop.body.1", label %"loop.done"
loop.body.1:
  %".82" = getelementptr i8, ptr %".74", i64 %"index.1"
  call void @"llvm.prefetch.p0"(ptr %".82", i32 0, i32 2, i32 1)
  %".84" = add nsw i64 %"index.1", 64
  br label %"loop.head.1"
loop.done:
  %".87" = getelementptr i8, ptr %".74", i64 %".79"
  %".88" = mul i64 %".61", %".48"
  br label %"loop.head.2"
loop.head.2:
  %"index.2" = phi  i64 [0, %"loop.done"], [%".93", %"loop.body.2"]
  %".90" = icmp slt i64 %"index.2", %".88"
  br i1 %".90", label %"loop.body.2", label %"loop.done.1"
loop.body.2:
  %".91" = getelementptr i8, ptr %".75", i64 %"index.2"
  call void @"llvm.prefetch.p0"(ptr %".91", i32 0, i32 2, i32 1)
  %".93" = add nsw i64 %"index.2", 64
  br label %"loop.head.2"
loop.done.1:
  %".96" = getelementptr i8, ptr %".75", i64 %".88"
  br label %"carried.body.1"
carried.body.1:
  %".98" = phi  i64 [0, %"loop.done.1"], [%".112", %"carried.body.1"]
  %".99" = phi  ptr [%".76", %"loop.done.1"], [%".110", %"carried.body.1"]
  %".100" = phi  ptr [%".77", %"loop.done.1"], [%".111", %"carried.body.1"]
  %".101" = phi  <4 x float> [%".78", %"loop.done.1"], [%".109", %"carried.body.1"]
  %".102" = getelementptr i8, ptr %".100", i64 %".70"
  call void @"llvm.prefetch.p0"(ptr %".102", i32 0, i32 3, i32 1)
  %".104" = load <4 x float>, ptr %".100", align 4
  %".105" = load float, ptr %".99", align 4
  %".106" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".105", i64 0
  %".107" = shufflevector <4 x float> %".106", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".108" = fmul <4 x float> %".107", %".104"
  %".109" = fadd <4 x float> %".108", %".101"
  %".110" = getelementptr i8, ptr %".99", i64 %".64"
  %".111" = getelementptr i8, ptr %".100", i64 %".65"
  %".112" = add i64 %".98", 1
  %".113" = icmp slt i64 %".112", %".60"
  br i1 %".113", label %"carried.body.1", label %"carried.done.1"
carried.done.1:
  %".115" = getelementptr i8, ptr %".76", i64 4
  %".116" = getelementptr i8, ptr %".77", i64 16
  %".117" = add i64 %".73", 1
  %".118" = icmp slt i64 %".117", %".63"
  br i1 %".118", label %"carried.body", label %"carried.done"
carried.body.2:
  %".138" = phi  i64 [0, %"loop.body.else"], [%".185", %"carried.done.3"]
  %".139" = phi  i64 [%".132", %"loop.body.else"], [%".184", %"carried.done.3"]
  %".140" = phi  ptr [%".44", %"loop.body.else"], [%".156", %"carried.done.3"]
  %".141" = phi  ptr [%".49", %"loop.body.else"], [%".165", %"carried.done.3"]
  %".142" = phi  ptr [%".22", %"loop.body.else"], [%".179", %"carried.done.3"]
  %".143" = phi  ptr [%".24", %"loop.body.else"], [%".180", %"carried.done.3"]
  %".144" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".178", %"carried.done.3"]
  %".145" = icmp sgt i64 %".139", 8
  %".146" = select  i1 %".145", i64 8, i64 %".139"
  %".147" = mul i64 %".146", 1
  %".148" = mul i64 %".147", %".39"
  br label %"loop.head.3"
carried.done.2:
  %".188" = phi  i64 [%".132", %"loop.body.else"], [%".184", %"carried.done.3"]
  %".189" = phi  ptr [%".44", %"loop.body.else"], [%".156", %"carried.done.3"]
  %".190" = phi  ptr [%".49", %"loop.body.else"], [%".165", %"carried.done.3"]
  %".191" = phi  ptr [%".22", %"loop.body.else"], [%".179", %"carried.done.3"]
  %".192" = phi  ptr [%".24", %"loop.body.else"], [%".180", %"carried.done.3"]
  %".193" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".178", %"carried.done.3"]
  %".194" = srem i64 %"k", 1
  br label %"loop.body.endif"
loop.head.3:
  %"index.3" = phi  i64 [0, %"carried.body.2"], [%".153", %"loop.body.3"]
  %".150" = icmp slt i64 %"index.3", %".148"
  br i1 %".150", label %"loop.body.3", label %"loop.done.2"
loop.body.3:
  %".151" = getelementptr i8, ptr %".140", i64 %"index.3"
  call void @"llvm.prefetch.p0"(ptr %".151", i32 0, i32 2, i32 1)
  %".153" = add nsw i64 %"index.3", 64
  br label %"loop.head.3"
loop.done.2:
  %".156" = getelementptr i8, ptr %".140", i64 %".148"
  %".157" = mul i64 %".147", %".48"
  br label %"loop.head.4"
loop.head.4:
  %"index.4" = phi  i64 [0, %"loop.done.2"], [%".162", %"loop.body.4"]
  %".159" = icmp slt i64 %"index.4", %".157"
  br i1 %".159", label %"loop.body.4", label %"loop.done.3"
loop.body.4:
  %".160" = getelementptr i8, ptr %".141", i64 %"index.4"
  call void @"llvm.prefetch.p0"(ptr %".160", i32 0, i32 2, i32 1)
  %".162" = add nsw i64 %"index.4", 64
  br label %"loop.head.4"
loop.done.3:
  %".165" = getelementptr i8, ptr %".141", i64 %".157"
  %".166" = getelementptr i8, ptr %".142", i64 64
  call void @"llvm.prefetch.p0"(ptr %".166", i32 0, i32 3, i32 1)
  br label %"carried.body.3"
carried.body.3:
  %".169" = phi  i64 [0, %"loop.done.3"], [%".181", %"carried.body.3"]
  %".170" = phi  ptr [%".142", %"loop.done.3"], [%".179", %"carried.body.3"]
  %".171" = phi  ptr [%".143", %"loop.done.3"], [%".180", %"carried.body.3"]
  %".172" = phi  <4 x float> [%".144", %"loop.done.3"], [%".178", %"carried.body.3"]
  %".173" = load <4 x float>, ptr %".171", align 4
  %".174" = load float, ptr %".170", align 4
  %".175" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".174", i64 0
  %".176" = shufflevector <4 x float> %".175", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".177" = fmul <4 x float> %".176", %".173"
  %".178" = fadd <4 x float> %".177", %".172"
  %".179" = getelementptr i8, ptr %".170", i64 4
  %".180" = getelementptr i8, ptr %".171", i64 16
  %".181" = add i64 %".169", 1
  %".182" = icmp slt i64 %".181", %".146"
  br i1 %".182", label %"carried.body.3", label %"carried.done.3"
carried.done.3:
  %".184" = sub i64 %".139", %".146"
  %".185" = add i64 %".138", 1
  %".186" = icmp slt i64 %".185", %".135"
  br i1 %".186", label %"carried.body.2", label %"carried.done.2"
carried.body.4:
  %".202" = phi  i64 [0, %"loop.body.endif"], [%".214", %"carried.body.4"]
  %".203" = phi  ptr [%".197", %"loop.body.endif"], [%".212", %"carried.body.4"]
  %".204" = phi  ptr [%".198", %"loop.body.endif"], [%".213", %"carried.body.4"]
  %".205" = phi  <4 x float> [%".199", %"loop.body.endif"], [%".211", %"carried.body.4"]
  %".206" = load <4 x float>, ptr %".204", align 4
  %".207" = load float, ptr %".203", align 4
  %".208" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".207", i64 0
  %".209" = shufflevector <4 x float> %".208", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".210" = fmul <4 x float> %".209", %".206"
  %".211" = fadd <4 x float> %".210", %".205"
  %".212" = getelementptr i8, ptr %".203", i64 4
  %".213" = getelementptr i8, ptr %".204", i64 16
  %".214" = add i64 %".202", 1
  %".215" = icmp slt i64 %".214", %".196"
  br i1 %".215", label %"carried.body.4", label %"carried.done.4"
carried.done.4:
  %".217" = phi  ptr [%".197", %"loop.body.endif"], [%".212", %"carried.body.4"]
  %".218" = phi  ptr [%".198", %"loop.body.endif"], [%".213", %"carried.body.4"]
  %".219" = phi  <4 x float> [%".199", %"loop.body.endif"], [%".211", %"carried.body.4"]
  %".220" = mul i64 %".11", 0
  %".221" = getelementptr i8, ptr %".28", i64 %".220"
  %".222" = getelementptr i8, ptr %"context", i64 40
  %".223" = load i64, ptr %".222"
  %".224" = icmp ne i64 %".223", 0
  br i1 %".224", label %"carried.done.4.if", label %"carried.done.4.endif"
carried.done.4.if:
  %".226" = load <4 x float>, ptr %".221", align 4
  %".227" = fadd <4 x float> %".219", %".226"
  br label %"carried.done.4.endif"
carried.done.4.endif:
  %".229" = phi  <4 x float> [%".219", %"carried.done.4"], [%".227", %"carried.done.4.if"]
  store <4 x float> %".229", ptr %".221", align 4
  %".231" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.4:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

!0 = !{ !"branch_weights", i32 1, i32 99 }