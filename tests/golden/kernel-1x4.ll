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
  %"index" = phi  i64 [0, %"entry"], [%".237", %"loop.body.endif.endif.endif.endif"]
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
  br label %"carried.head"
loop.body.else:
  %".131" = sdiv i64 %"k", 1
  %".132" = add i64 %".131", 8
  %".133" = sub i64 %".132", 1
  %".134" = sdiv i64 %".133", 8
  br label %"carried.head.1"
loop.body.endif:
  %".191" = phi  i64 [%".129", %"carried.done"], [%".189", %"carried.done.2"]
  %".192" = phi  ptr [%".126", %"carried.done"], [%".140", %"carried.done.2"]
  %".193" = phi  ptr [%".128", %"carried.done"], [%".141", %"carried.done.2"]
  %".194" = phi  <4 x float> [%".77", %"carried.done"], [%".142", %"carried.done.2"]
  %".195" = icmp sgt i64 %".191", 0
  br i1 %".195", label %"loop.body.endif.if", label %"loop.body.endif.endif"
carried.body:
  %".80" = mul i64 %".61", %".39"
  br label %"loop.head.1"
carried.done:
  %".124" = mul i64 %".63", %".61"
  %".125" = mul i64 %".124", 4
  %".126" = getelementptr i8, ptr %".22", i64 %".125"
  %".127" = mul i64 %".124", 16
  %".128" = getelementptr i8, ptr %".24", i64 %".127"
  %".129" = sub i64 %"k", %".124"
  br label %"loop.body.endif"
carried.head:
  %".72" = phi  i64 [0, %"loop.body.if"], [%".122", %"carried.done.1"]
  %".73" = phi  ptr [%".44", %"loop.body.if"], [%".88", %"carried.done.1"]
  %".74" = phi  ptr [%".49", %"loop.body.if"], [%".97", %"carried.done.1"]
  %".75" = phi  ptr [%".22", %"loop.body.if"], [%".119", %"carried.done.1"]
  %".76" = phi  ptr [%".24", %"loop.body.if"], [%".121", %"carried.done.1"]
  %".77" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".110", %"carried.done.1"]
  %".78" = icmp slt i64 %".72", %".63"
  br i1 %".78", label %"carried.body", label %"carried.done"
loop.head.1:
  %"index.1" = phi  i64 [0, %"carried.body"], [%".85", %"loop.body.1"]
  %".82" = icmp slt i64 %"index.1", %".80"
  br i1 %".82", label %"loop.body.1", label %"loop.done"
loop.body.1:
  %".83" = getelementptr i8, ptr %".73", i64 %"index.1"
  call void @"llvm.prefetch.p0"(ptr %".83", i32 0, i32 2, i32 1)
  %".85" = add nsw i64 %"index.1", 64
  br label %"loop.head.1"
loop.done:
  %".88" = getelementptr i8, ptr %".73", i64 %".80"
  %".89" = mul i64 %".61", %".48"
  br label %"loop.head.2"
loop.head.2:
  %"index.2" = phi  i64 [0, %"loop.done"], [%".94", %"loop.body.2"]
  %".91" = icmp slt i64 %"index.2", %".89"
  br i1 %".91", label %"loop.body.2", label %"loop.done.1"
loop.body.2:
  %".92" = getelementptr i8, ptr %".74", i64 %"index.2"
  call void @"llvm.prefetch.p0"(ptr %".92", i32 0, i32 2, i32 1)
  %".94" = add nsw i64 %"index.2", 64
  br label %"loop.head.2"
loop.done.1:
  %".97" = getelementptr i8, ptr %".74", i64 %".89"
  br label %"carried.body.1"
carried.body.1:
  %".99" = phi  i64 [0, %"loop.done.1"], [%".115", %"carried.body.1"]
  %".100" = phi  ptr [%".75", %"loop.done.1"], [%".112", %"carried.body.1"]
  %".101" = phi  ptr [%".76", %"loop.done.1"], [%".114", %"carried.body.1"]
  %".102" = phi  <4 x float> [%".77", %"loop.done.1"], [%".110", %"carried.body.1"]
  %".103" = getelementptr i8, ptr %".101", i64 %".70"
  call void @"llvm.prefetch.p0"(ptr %".103", i32 0, i32 3, i32 1)
  %".105" = load <4 x float>, ptr %".101", align 4
  %".106" = load float, ptr %".100", align 4
  %".107" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".106", i64 0
  %".108" = shufflevector <4 x float> %".107", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".109" = fmul <4 x float> %".108", %".105"
  %".110" = fadd <4 x float> %".109", %".102"
  %".111" = getelementptr i8, ptr %".100", i64 %".64"
  %".112" = call ptr asm  "", "=r,0"(ptr %".111")
  %".113" = getelementptr i8, ptr %".101", i64 %".65"
  %".114" = call ptr asm  "", "=r,0"(ptr %".113")
  %".115" = add i64 %".99", 1
  %".116" = icmp slt i64 %".115", %".60"
  br i1 %".116", label %"carried.body.1", label %"carried.done.1"
carried.done.1:
  %".118" = getelementptr i8, ptr %".75", i64 4
  %".119" = call ptr asm  "", "=r,0"(ptr %".118")
  %".120" = getelementptr i8, ptr %".76", i64 16
  %".121" = call ptr asm  "", "=r,0"(ptr %".120")
  %".122" = add i64 %".72", 1
  br label %"carried.head"
carried.body.2:
  %".145" = icmp sgt i64 %".137", 8
  %".146" = select  i1 %".145", i64 8, i64 %".137"
  %".147" = mul i64 %".146", 1
  %".148" = mul i64 %".147", %".39"
  br label %"loop.head.3"
carried.done.2:
  %".189" = srem i64 %"k", 1
  br label %"loop.body.endif"
carried.head.1:
  %".136" = phi  i64 [0, %"loop.body.else"], [%".187", %"carried.done.3"]
  %".137" = phi  i64 [%".131", %"loop.body.else"], [%".186", %"carried.done.3"]
  %".138" = phi  ptr [%".44", %"loop.body.else"], [%".156", %"carried.done.3"]
  %".139" = phi  ptr [%".49", %"loop.body.else"], [%".165", %"carried.done.3"]
  %".140" = phi  ptr [%".22", %"loop.body.else"], [%".180", %"carried.done.3"]
  %".141" = phi  ptr [%".24", %"loop.body.else"], [%".182", %"carried.done.3"]
  %".142" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".178", %"carried.done.3"]
  %".143" = icmp slt i64 %".136", %".134"
  br i1 %".143", label %"carried.body.2", label %"carried.done.2"
loop.head.3:
  %"index.3" = phi  i64 [0, %"carried.body.2"], [%".153", %"loop.body.3"]
  %".150" = icmp slt i64 %"index.3", %".148"
  br i1 %".150", label %"loop.body.3", label %"loop.done.2"
loop.body.3:
  %".151" = getelementptr i8, ptr %".138", i64 %"index.3"
  call void @"llvm.prefetch.p0"(ptr %".151", i32 0, i32 2, i32 1)
  %".153" = add nsw i64 %"index.3", 64
  br label %"loop.head.3"
loop.done.2:
  %".156" = getelementptr i8, ptr %".138", i64 %".148"
  %".157" = mul i64 %".147", %".48"
  br label %"loop.head.4"
loop.head.4:
  %"index.4" = phi  i64 [0, %"loop.done.2"], [%".162", %"loop.body.4"]
  %".159" = icmp slt i64 %"index.4", %".157"
  br i1 %".159", label %"loop.body.4", label %"loop.done.3"
loop.body.4:
  %".160" = getelementptr i8, ptr %".139", i64 %"index.4"
  call void @"llvm.prefetch.p0"(ptr %".160", i32 0, i32 2, i32 1)
  %".162" = add nsw i64 %"index.4", 64
  br label %"loop.head.4"
loop.done.3:
  %".165" = getelementptr i8, ptr %".139", i64 %".157"
  %".166" = getelementptr i8, ptr %".140", i64 64
  call void @"llvm.prefetch.p0"(ptr %".166", i32 0, i32 3, i32 1)
  br label %"carried.body.3"
carried.body.3:
  %".169" = phi  i64 [0, %"loop.done.3"], [%".183", %"carried.body.3"]
  %".170" = phi  ptr [%".140", %"loop.done.3"], [%".180", %"carried.body.3"]
  %".171" = phi  ptr [%".141", %"loop.done.3"], [%".182", %"carried.body.3"]
  %".172" = phi  <4 x float> [%".142", %"loop.done.3"], [%".178", %"carried.body.3"]
  %".173" = load <4 x float>, ptr %".171", align 4
  %".174" = load float, ptr %".170", align 4
  %".175" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".174", i64 0
  %".176" = shufflevector <4 x float> %".175", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".177" = fmul <4 x float> %".176", %".173"
  %".178" = fadd <4 x float> %".177", %".172"
  %".179" = getelementptr i8, ptr %".170", i64 4
  %".180" = call ptr asm  "", "=r,0"(ptr %".179")
  %".181" = getelementptr i8, ptr %".171", i64 16
  %".182" = call ptr asm  "", "=r,0"(ptr %".181")
  %".183" = add i64 %".169", 1
  %".184" = icmp slt i64 %".183", %".146"
  br i1 %".184", label %"carried.body.3", label %"carried.done.3"
carried.done.3:
  %".186" = sub i64 %".137", %".146"
  %".187" = add i64 %".136", 1
  br label %"carried.head.1"
loop.body.endif.if:
  br label %"carried.body.4"
loop.body.endif.endif:
  %".216" = phi  ptr [%".192", %"loop.body.endif"], [%".209", %"carried.done.4"]
  %".217" = phi  ptr [%".193", %"loop.body.endif"], [%".211", %"carried.done.4"]
  %".218" = phi  <4 x float> [%".194", %"loop.body.endif"], [%".207", %"carried.done.4"]
  %".219" = mul i64 %".11", 0
  %".220" = getelementptr i8, ptr %".28", i64 %".219"
  %".221" = getelementptr i8, ptr %"context", i64 40
  %".222" = load i64, ptr %".221"
  %".223" = icmp ne i64 %".222", 0
  br i1 %".223", label %"loop.body.endif.endif.if", label %"loop.body.endif.endif.endif"
carried.body.4:
  %".198" = phi  i64 [0, %"loop.body.endif.if"], [%".212", %"carried.body.4"]
  %".199" = phi  ptr [%".192", %"loop.body.endif.if"], [%".209", %"carried.body.4"]
  %".200" = phi  ptr [%".193", %"loop.body.endif.if"], [%".211", %"carried.body.4"]
  %".201" = phi  <4 x float> [%".194", %"loop.body.endif.if"], [%".207", %"carried.body.4"]
  %".202" = load <4 x float>, ptr %".200", align 4
  %".203" = load float, ptr %".199", align 4
  %".204" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".203", i64 0
  %".205" = shufflevector <4 x float> %".204", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".206" = fmul <4 x float> %".205", %".202"
  %".207" = fadd <4 x float> %".206", %".201"
  %".208" = getelementptr i8, ptr %".199", i64 4
  %".209" = call ptr asm  "", "=r,0"(ptr %".208")
  %".210" = getelementptr i8, ptr %".200", i64 16
  %".211" = call ptr asm  "", "=r,0"(ptr %".210")
  %".212" = add i64 %".198", 1
  %".213" = icmp slt i64 %".212", %".191"
  br i1 %".213", label %"carried.body.4", label %"carried.done.4"
carried.done.4:
  br label %"loop.body.endif.endif"
loop.body.endif.endif.if:
  %".225" = load <4 x float>, ptr %".220", align 4
  %".226" = fadd <4 x float> %".218", %".225"
  br label %"loop.body.endif.endif.endif"
loop.body.endif.endif.endif:
  %".228" = phi  <4 x float> [%".218", %"loop.body.endif.endif"], [%".226", %"loop.body.endif.endif.if"]
  store <4 x float> %".228", ptr %".220", align 4
  %".230" = getelementptr i8, ptr %"context", i64 48
  %".231" = load i64, ptr %".230"
  %".232" = icmp ugt i64 %".231", 1
  br i1 %".232", label %"loop.body.endif.endif.endif.if", label %"loop.body.endif.endif.endif.endif"
loop.body.endif.endif.endif.if:
  %".234" = inttoptr i64 %".231" to void (ptr, ptr, i64, i64, i64, i64)*
  call void %".234"(ptr %"context", ptr %".28", i64 %".29", i64 %".30", i64 1, i64 4)
  br label %"loop.body.endif.endif.endif.endif"
loop.body.endif.endif.endif.endif:
  %".237" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.4:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

!0 = !{ !"branch_weights", i32 1, i32 99 }