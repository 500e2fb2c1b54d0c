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
  %"index" = phi  i64 [0, %"entry"], [%".246", %"carried.done.4.endif.endif"]
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
  %".136" = sdiv i64 %"k", 1
  %".137" = add i64 %".136", 8
  %".138" = sub i64 %".137", 1
  %".139" = sdiv i64 %".138", 8
  %".140" = icmp sgt i64 %".139", 0
  br i1 %".140", label %"carried.body.2", label %"carried.done.2"
loop.body.endif:
  %".202" = phi  i64 [%".134", %"carried.done"], [%".200", %"carried.done.2"]
  %".203" = phi  ptr [%".131", %"carried.done"], [%".197", %"carried.done.2"]
  %".204" = phi  ptr [%".133", %"carried.done"], [%".198", %"carried.done.2"]
  %".205" = phi  <4 x float> [%".128", %"carried.done"], [%".199", %"carried.done.2"]
  %".206" = icmp sgt i64 %".202", 0
  br i1 %".206", label %"carried.body.4", label %"carried.done.4"
carried.body:
  %".73" = phi  i64 [0, %"loop.body.if"], [%".121", %"carried.done.1"]
  %".74" = phi  ptr [%".44", %"loop.body.if"], [%".87", %"carried.done.1"]
  %".75" = phi  ptr [%".49", %"loop.body.if"], [%".96", %"carried.done.1"]
  %".76" = phi  ptr [%".22", %"loop.body.if"], [%".118", %"carried.done.1"]
  %".77" = phi  ptr [%".24", %"loop.body.if"], [%".120", %"carried.done.1"]
  %".78" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".109", %"carried.done.1"]
  %".79" = mul i64 %".61", %".39"
  br label %"loop.head.1"
carried.done:
  %".124" = phi  ptr [%".44", %"loop.body.if"], [%".87", %"carried.done.1"]
  %".125" = phi  ptr [%".49", %"loop.body.if"], [%".96", %"carried.done.1"]
  %".126" = phi  ptr [%".22", %"loop.body.if"], [%".118", %"carried.done.1"]
  %".127" = phi  ptr [%".24", %"loop.body.if"], [%".120", %"carried.done.1"]
  %".128" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".109", %"carried.done.1"]
  %".129" = mul i64 %".63", %".61"
  %".130" = mul i64 %".129", 4
  %".131" = getelementptr i8, ptr %".22", i64 %".130"
  %".132" = mul i64 %".129", 16
  %".133" = getelementptr i8, ptr %".24", i64 %".132"
  %".134" = sub i64 %"k", %".129"
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
  %".98" = phi  i64 [0, %"loop.done.1"], [%".114", %"carried.body.1"]
  %".99" = phi  ptr [%".76", %"loop.done.1"], [%".111", %"carried.body.1"]
  %".100" = phi  ptr [%".77", %"loop.done.1"], [%".113", %"carried.body.1"]
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
  %".111" = call ptr asm  "", "=r,0"(ptr %".110")
  %".112" = getelementptr i8, ptr %".100", i64 %".65"
  %".113" = call ptr asm  "", "=r,0"(ptr %".112")
  %".114" = add i64 %".98", 1
  %".115" = icmp slt i64 %".114", %".60"
  br i1 %".115", label %"carried.body.1", label %"carried.done.1"
carried.done.1:
  %".117" = getelementptr i8, ptr %".76", i64 4
  %".118" = call ptr asm  "", "=r,0"(ptr %".117")
  %".119" = getelementptr i8, ptr %".77", i64 16
  %".120" = call ptr asm  "", "=r,0"(ptr %".119")
  %".121" = add i64 %".73", 1
  %".122" = icmp slt i64 %".121", %".63"
  br i1 %".122", label %"carried.body", label %"carried.done"
carried.body.2:
  %".142" = phi  i64 [0, %"loop.body.else"], [%".191", %"carried.done.3"]
  %".143" = phi  i64 [%".136", %"loop.body.else"], [%".190", %"carried.done.3"]
  %".144" = phi  ptr [%".44", %"loop.body.else"], [%".160", %"carried.done.3"]
  %".145" = phi  ptr [%".49", %"loop.body.else"], [%".169", %"carried.done.3"]
  %".146" = phi  ptr [%".22", %"loop.body.else"], [%".184", %"carried.done.3"]
  %".147" = phi  ptr [%".24", %"loop.body.else"], [%".186", %"carried.done.3"]
  %".148" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".182", %"carried.done.3"]
  %".149" = icmp sgt i64 %".143", 8
  %".150" = select  i1 %".149", i64 8, i64 %".143"
  %".151" = mul i64 %".150", 1
  %".152" = mul i64 %".151", %".39"
  br label %"loop.head.3"
carried.done.2:
  %".194" = phi  i64 [%".136", %"loop.body.else"], [%".190", %"carried.done.3"]
  %".195" = phi  ptr [%".44", %"loop.body.else"], [%".160", %"carried.done.3"]
  %".196" = phi  ptr [%".49", %"loop.body.else"], [%".169", %"carried.done.3"]
  %".197" = phi  ptr [%".22", %"loop.body.else"], [%".184", %"carried.done.3"]
  %".198" = phi  ptr [%".24", %"loop.body.else"], [%".186", %"carried.done.3"]
  %".199" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".182", %"carried.done.3"]
  %".200" = srem i64 %"k", 1
  br label %"loop.body.endif"
loop.head.3:
  %"index.3" = phi  i64 [0, %"carried.body.2"], [%".157", %"loop.body.3"]
  %".154" = icmp slt i64 %"index.3", %".152"
  br i1 %".154", label %"loop.body.3", label %"loop.done.2"
loop.body.3:
  %".155" = getelementptr i8, ptr %".144", i64 %"index.3"
  call void @"llvm.prefetch.p0"(ptr %".155", i32 0, i32 2, i32 1)
  %".157" = add nsw i64 %"index.3", 64
  br label %"loop.head.3"
loop.done.2:
  %".160" = getelementptr i8, ptr %".144", i64 %".152"
  %".161" = mul i64 %".151", %".48"
  br label %"loop.head.4"
loop.head.4:
  %"index.4" = phi  i64 [0, %"loop.done.2"], [%".166", %"loop.body.4"]
  %".163" = icmp slt i64 %"index.4", %".161"
  br i1 %".163", label %"loop.body.4", label %"loop.done.3"
loop.body.4:
  %".164" = getelementptr i8, ptr %".145", i64 %"index.4"
  call void @"llvm.prefetch.p0"(ptr %".164", i32 0, i32 2, i32 1)
  %".166" = add nsw i64 %"index.4", 64
  br label %"loop.head.4"
loop.done.3:
  %".169" = getelementptr i8, ptr %".145", i64 %".161"
  %".170" = getelementptr i8, ptr %".146", i64 64
  call void @"llvm.prefetch.p0"(ptr %".170", i32 0, i32 3, i32 1)
  br label %"carried.body.3"
carried.body.3:
  %".173" = phi  i64 [0, %"loop.done.3"], [%".187", %"carried.body.3"]
  %".174" = phi  ptr [%".146", %"loop.done.3"], [%".184", %"carried.body.3"]
  %".175" = phi  ptr [%".147", %"loop.done.3"], [%".186", %"carried.body.3"]
  %".176" = phi  <4 x float> [%".148", %"loop.done.3"], [%".182", %"carried.body.3"]
  %".177" = load <4 x float>, ptr %".175", align 4
  %".178" = load float, ptr %".174", align 4
  %".179" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".178", i64 0
  %".180" = shufflevector <4 x float> %".179", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".181" = fmul <4 x float> %".180", %".177"
  %".182" = fadd <4 x float> %".181", %".176"
  %".183" = getelementptr i8, ptr %".174", i64 4
  %".184" = call ptr asm  "", "=r,0"(ptr %".183")
  %".185" = getelementptr i8, ptr %".175", i64 16
  %".186" = call ptr asm  "", "=r,0"(ptr %".185")
  %".187" = add i64 %".173", 1
  %".188" = icmp slt i64 %".187", %".150"
  br i1 %".188", label %"carried.body.3", label %"carried.done.3"
carried.done.3:
  %".190" = sub i64 %".143", %".150"
  %".191" = add i64 %".142", 1
  %".192" = icmp slt i64 %".191", %".139"
  br i1 %".192", label %"carried.body.2", label %"carried.done.2"
carried.body.4:
  %".208" = phi  i64 [0, %"loop.body.endif"], [%".222", %"carried.body.4"]
  %".209" = phi  ptr [%".203", %"loop.body.endif"], [%".219", %"carried.body.4"]
  %".210" = phi  ptr [%".204", %"loop.body.endif"], [%".221", %"carried.body.4"]
  %".211" = phi  <4 x float> [%".205", %"loop.body.endif"], [%".217", %"carried.body.4"]
  %".212" = load <4 x float>, ptr %".210", align 4
  %".213" = load float, ptr %".209", align 4
  %".214" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".213", i64 0
  %".215" = shufflevector <4 x float> %".214", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".216" = fmul <4 x float> %".215", %".212"
  %".217" = fadd <4 x float> %".216", %".211"
  %".218" = getelementptr i8, ptr %".209", i64 4
  %".219" = call ptr asm  "", "=r,0"(ptr %".218")
  %".220" = getelementptr i8, ptr %".210", i64 16
  %".221" = call ptr asm  "", "=r,0"(ptr %".220")
  %".222" = add i64 %".208", 1
  %".223" = icmp slt i64 %".222", %".202"
  br i1 %".223", label %"carried.body.4", label %"carried.done.4"
carried.done.4:
  %".225" = phi  ptr [%".203", %"loop.body.endif"], [%".219", %"carried.body.4"]
  %".226" = phi  ptr [%".204", %"loop.body.endif"], [%".221", %"carried.body.4"]
  %".227" = phi  <4 x float> [%".205", %"loop.body.endif"], [%".217", %"carried.body.4"]
  %".228" = mul i64 %".11", 0
  %".229" = getelementptr i8, ptr %".28", i64 %".228"
  %".230" = getelementptr i8, ptr %"context", i64 40
  %".231" = load i64, ptr %".230"
  %".232" = icmp ne i64 %".231", 0
  br i1 %".232", label %"carried.done.4.if", label %"carried.done.4.endif"
carried.done.4.if:
  %".234" = load <4 x float>, ptr %".229", align 4
  %".235" = fadd <4 x float> %".227", %".234"
  br label %"carried.done.4.endif"
carried.done.4.endif:
  %".237" = phi  <4 x float> [%".227", %"carried.done.4"], [%".235", %"carried.done.4.if"]
  store <4 x float> %".237", ptr %".229", align 4
  %".239" = getelementptr i8, ptr %"context", i64 48
  %".240" = load i64, ptr %".239"
  %".241" = icmp ugt i64 %".240", 1
  br i1 %".241", label %"carried.done.4.endif.if", label %"carried.done.4.endif.endif"
carried.done.4.endif.if:
  %".243" = inttoptr i64 %".240" to void (ptr, ptr, i64, i64, i64, i64)*
  call void %".243"(ptr %"context", ptr %".28", i64 %".29", i64 %".30", i64 1, i64 4)
  br label %"carried.done.4.endif.endif"
carried.done.4.endif.endif:
  %".246" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.4:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

!0 = !{ !"branch_weights", i32 1, i32 99 }