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
  %"index" = phi  i64 [0, %"entry"], [%".218", %"carried.done.4.endif"]
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
  %".55" = sdiv i64 %"k", 8
  %".56" = mul i64 %".55", 4
  %".57" = mul i64 %".55", 16
  %".58" = icmp sgt i64 %".55", 0
  br i1 %".58", label %"carried.body", label %"carried.done"
loop.body.else:
  %".119" = sdiv i64 %"k", 1
  %".120" = add i64 %".119", 16
  %".121" = sub i64 %".120", 1
  %".122" = sdiv i64 %".121", 16
  %".123" = icmp sgt i64 %".122", 0
  br i1 %".123", label %"carried.body.2", label %"carried.done.2"
loop.body.endif:
  %".183" = phi  i64 [%".117", %"carried.done"], [%".181", %"carried.done.2"]
  %".184" = phi  ptr [%".114", %"carried.done"], [%".178", %"carried.done.2"]
  %".185" = phi  ptr [%".116", %"carried.done"], [%".179", %"carried.done.2"]
  %".186" = phi  <4 x float> [%".111", %"carried.done"], [%".180", %"carried.done.2"]
  %".187" = icmp sgt i64 %".183", 0
  br i1 %".187", label %"carried.body.4", label %"carried.done.4"
carried.body:
  %".60" = phi  i64 [0, %"loop.body.if"], [%".104", %"carried.done.1"]
  %".61" = phi  ptr [%".44", %"loop.body.if"], [%".74", %"carried.done.1"]
  %".62" = phi  ptr [%".49", %"loop.body.if"], [%".83", %"carried.done.1"]
  %".63" = phi  ptr [%".22", %"loop.body.if"], [%".102", %"carried.done.1"]
  %".64" = phi  ptr [%".24", %"loop.body.if"], [%".103", %"carried.done.1"]
  %".65" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".96", %"carried.done.1"]
  %".66" = mul i64 8, %".39"
  br label %"loop.head.1"
carried.done:
  %".107" = phi  ptr [%".44", %"loop.body.if"], [%".74", %"carried.done.1"]
  %".108" = phi  ptr [%".49", %"loop.body.if"], [%".83", %"carried.done.1"]
  %".109" = phi  ptr [%".22", %"loop.body.if"], [%".102", %"carried.done.1"]
  %".110" = phi  ptr [%".24", %"loop.body.if"], [%".103", %"carried.done.1"]
  %".111" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".96", %"carried.done.1"]
  %".112" = mul i64 %".55", 8
  %".113" = mul i64 %".112", 4
  %".114" = getelementptr i8, ptr %".22", i64 %".113"
  %".115" = mul i64 %".112", 16
  %".116" = getelementptr i8, ptr %".24", i64 %".115"
  %".117" = sub i64 %"k", %".112"
  br label %"loop.body.endif"
loop.head.1:
  %"index.1" = phi  i64 [0, %"carried.body"], [%".71", %"loop.body.1"]
  %".68" = icmp slt i64 %"index.1", %".66"
  br i1 %".68", label %"loop.body.1", label %"loop.done"
loop.body.1:
  %".69" = getelementptr i8, ptr %".61", i64 %"index.1"
  call void @"llvm.prefetch.p0"(ptr %".69", i32 0, i32 2, i32 1)
  %".71" = add nsw i64 %"index.1", 64
  br label %"loop.head.1"
loop.done:
  %".74" = getelementptr i8, ptr %".61", i64 %".66"
  %".75" = mul i64 8, %".48"
  br label %"loop.head.2"
loop.head.2:
  %"index.2" = phi  i64 [0, %"loop.done"], [%".80", %"loop.body.2"]
  %".77" = icmp slt i64 %"index.2", %".75"
  br i1 %".77", label %"loop.body.2", label %"loop.done.1"
loop.body.2:
  %".78" = getelementptr i8, ptr %".62", i64 %"index.2"
  call void @"llvm.prefetch.p0"(ptr %".78", i32 0, i32 2, i32 1)
  %".80" = add nsw i64 %"index.2", 64
  br label %"loop.head.2"
loop.done.1:
  %".83" = getelementptr i8, ptr %".62", i64 %".75"
  br label %"carried.body.1"
carried.body.1:
  %".85" = phi  i64 [0, %"loop.done.1"], [%".99", %"carried.body.1"]
  %".86" = phi  ptr [%".63", %"loop.done.1"], [%".97", %"carried.body.1"]
  %".87" = phi  ptr [%".64", %"loop.done.1"], [%".98", %"carried.body.1"]
  %".88" = phi  <4 x float> [%".65", %"loop.done.1"], [%".96", %"carried.body.1"]
  %".89" = getelementptr i8, ptr %".87", i64 512
  call void @"llvm.prefetch.p0"(ptr %".89", i32 0, i32 3, i32 1)
  %".91" = load <4 x float>, ptr %".87", align 4
  %".92" = load float, ptr %".86", align 4
  %".93" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".92", i64 0
  %".94" = shufflevector <4 x float> %".93", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".95" = fmul <4 x float> %".94", %".91"
  %".96" = fadd <4 x float> %".95", %".88"
  %".97" = getelementptr i8, ptr %".86", i64 %".56"
  %".98" = getelementptr i8, ptr %".87", i64 %".57"
  %".99" = add i64 %".85", 1
  %".100" = icmp slt i64 %".99", 8
  br i1 %".100", label %"carried.body.1", label %"carried.done.1"
carried.done.1:
  %".102" = getelementptr i8, ptr %".63", i64 4
  %".103" = getelementptr i8, ptr %".64", i64 16
  %".104" = add i64 %".60", 1
  %".105" = icmp slt i64 %".104", %".55"
  br i1 %".105", label %"carried.body", label %"carried.done"
carried.body.2:
  %".125" = phi  i64 [0, %"loop.body.else"], [%".172", %"carried.done.3"]
  %".126" = phi  i64 [%".119", %"loop.body.else"], [%".171", %"carried.done.3"]
  %".127" = phi  ptr [%".44", %"loop.body.else"], [%".143", %"carried.done.3"]
  %".128" = phi  ptr [%".49", %"loop.body.else"], [%".152", %"carried.done.3"]
  %".129" = phi  ptr [%".22", %"loop.body.else"], [%".166", %"carried.done.3"]
  %".130" = phi  ptr [%".24", %"loop.body.else"], [%".167", %"carried.done.3"]
  %".131" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".165", %"carried.done.3"]
  %".132" = icmp sgt i64 %".126", 16
  %".133" = select  i1 %".132", i64 16, i64 %".126"
  %".134" = mul i64 %".133", 1
  %".135" = mul i64 %".134", %".39"
  br label %"loop.head.3"
carried.done.2:
  %".175" = phi  i64 [%".119", %"loop.body.else"], [%".171", %"carried.done.3"]
  %".176" = phi  ptr [%".44", %"loop.body.else"], [%".143", %"carried.done.3"]
  %".177" = phi  ptr [%".49", %"loop.body.else"], [%".152", %"carried.done.3"]
  %".178" = phi  ptr [%".22", %"loop.body.else"], [%".166", %"carried.done.3"]
  %".179" = phi  ptr [%".24", %"loop.body.else"], [%".167", %"carried.done.3"]
  %".180" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".165", %"carried.done.3"]
  %".181" = srem i64 %"k", 1
  br label %"loop.body.endif"
loop.head.3:
  %"index.3" = phi  i64 [0, %"carried.body.2"], [%".140", %"loop.body.3"]
  %".137" = icmp slt i64 %"index.3", %".135"
  br i1 %".137", label %"loop.body.3", label %"loop.done.2"
loop.body.3:
  %".138" = getelementptr i8, ptr %".127", i64 %"index.3"
  call void @"llvm.prefetch.p0"(ptr %".138", i32 0, i32 2, i32 1)
  %".140" = add nsw i64 %"index.3", 64
  br label %"loop.head.3"
loop.done.2:
  %".143" = getelementptr i8, ptr %".127", i64 %".135"
  %".144" = mul i64 %".134", %".48"
  br label %"loop.head.4"
loop.head.4:
  %"index.4" = phi  i64 [0, %"loop.done.2"], [%".149", %"loop.body.4"]
  %".146" = icmp slt i64 %"index.4", %".144"
  br i1 %".146", label %"loop.body.4", label %"loop.done.3"
loop.body.4:
  %".147" = getelementptr i8, ptr %".128", i64 %"index.4"
  call void @"llvm.prefetch.p0"(ptr %".147", i32 0, i32 2, i32 1)
  %".149" = add nsw i64 %"index.4", 64
  br label %"loop.head.4"
loop.done.3:
  %".152" = getelementptr i8, ptr %".128", i64 %".144"
  %".153" = getelementptr i8, ptr %".129", i64 64
  call void @"llvm.prefetch.p0"(ptr %".153", i32 0, i32 3, i32 1)
  br label %"carried.body.3"
carried.body.3:
  %".156" = phi  i64 [0, %"loop.done.3"], [%".168", %"carried.body.3"]
  %".157" = phi  ptr [%".129", %"loop.done.3"], [%".166", %"carried.body.3"]
  %".158" = phi  ptr [%".130", %"loop.done.3"], [%".167", %"carried.body.3"]
  %".159" = phi  <4 x float> [%".131", %"loop.done.3"], [%".165", %"carried.body.3"]
  %".160" = load <4 x float>, ptr %".158", align 4
  %".161" = load float, ptr %".157", align 4
  %".162" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".161", i64 0
  %".163" = shufflevector <4 x float> %".162", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".164" = fmul <4 x float> %".163", %".160"
  %".165" = fadd <4 x float> %".164", %".159"
  %".166" = getelementptr i8, ptr %".157", i64 4
  %".167" = getelementptr i8, ptr %".158", i64 16
  %".168" = add i64 %".156", 1
  %".169" = icmp slt i64 %".168", %".133"
  br i1 %".169", label %"carried.body.3", label %"carried.done.3"
carried.done.3:
  %".171" = sub i64 %".126", %".133"
  %".172" = add i64 %".125", 1
  %".173" = icmp slt i64 %".172", %".122"
  br i1 %".173", label %"carried.body.2", label %"carried.done.2"
carried.body.4:
  %".189" = phi  i64 [0, %"loop.body.endif"], [%".201", %"carried.body.4"]
  %".190" = phi  ptr [%".184", %"loop.body.endif"], [%".199", %"carried.body.4"]
  %".191" = phi  ptr [%".185", %"loop.body.endif"], [%".200", %"carried.body.4"]
  %".192" = phi  <4 x float> [%".186", %"loop.body.endif"], [%".198", %"carried.body.4"]
  %".193" = load <4 x float>, ptr %".191", align 4
  %".194" = load float, ptr %".190", align 4
  %".195" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".194", i64 0
  %".196" = shufflevector <4 x float> %".195", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".197" = fmul <4 x float> %".196", %".193"
  %".198" = fadd <4 x float> %".197", %".192"
  %".199" = getelementptr i8, ptr %".190", i64 4
  %".200" = getelementptr i8, ptr %".191", i64 16
  %".201" = add i64 %".189", 1
  %".202" = icmp slt i64 %".201", %".183"
  br i1 %".202", label %"carried.body.4", label %"carried.done.4"
carried.done.4:
  %".204" = phi  ptr [%".184", %"loop.body.endif"], [%".199", %"carried.body.4"]
  %".205" = phi  ptr [%".185", %"loop.body.endif"], [%".200", %"carried.body.4"]
  %".206" = phi  <4 x float> [%".186", %"loop.body.endif"], [%".198", %"carried.body.4"]
  %".207" = mul i64 %".11", 0
  %".208" = getelementptr i8, ptr %".28", i64 %".207"
  %".209" = getelementptr i8, ptr %"context", i64 40
  %".210" = load i64, ptr %".209"
  %".211" = icmp ne i64 %".210", 0
  br i1 %".211", label %"carried.done.4.if", label %"carried.done.4.endif"
carried.done.4.if:
  %".213" = load <4 x float>, ptr %".208", align 4
  %".214" = fadd <4 x float> %".206", %".213"
  br label %"carried.done.4.endif"
carried.done.4.endif:
  %".216" = phi  <4 x float> [%".206", %"carried.done.4"], [%".214", %"carried.done.4.if"]
  store <4 x float> %".216", ptr %".208", align 4
  %".218" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.4:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

!0 = !{ !"branch_weights", i32 1, i32 99 }