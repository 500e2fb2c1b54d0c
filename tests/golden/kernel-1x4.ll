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
  %"index" = phi  i64 [0, %"entry"], [%".236", %"loop.body.endif.endif.endif.endif"]
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
  call void @"llvm.prefetch.p0"(ptr %".28", i32 1, i32 3, i32 1)
  %".32" = getelementptr i8, ptr %".28", i64 15
  call void @"llvm.prefetch.p0"(ptr %".32", i32 1, i32 3, i32 1)
  %".34" = getelementptr i8, ptr %".28", i64 %".11"
  %".35" = load i64, ptr %"context"
  %".36" = getelementptr i8, ptr %"context", i64 64
  %".37" = load i64, ptr %".36"
  %".38" = udiv i64 %".37", 1
  %".39" = getelementptr i8, ptr %"context", i64 56
  %".40" = load ptr, ptr %".39"
  %".41" = mul i64 %"index", %"k"
  %".42" = mul i64 %".41", %".38"
  %".43" = getelementptr i8, ptr %".40", i64 %".42"
  %".44" = getelementptr i8, ptr %"context", i64 72
  %".45" = load i64, ptr %".44"
  %".46" = icmp ne i64 %".45", 0
  %".47" = select  i1 %".46", i64 4, i64 0
  %".48" = getelementptr i8, ptr %".22", i64 %".45"
  %".49" = getelementptr i8, ptr %"context", i64 80
  %".50" = load i64, ptr %".49"
  %".51" = mul i64 %".50", 1
  %".52" = icmp slt i64 %"index", %".51"
  br i1 %".52", label %"loop.body.if", label %"loop.body.else", !prof !0
loop.body.if:
  %".54" = getelementptr i8, ptr %"context", i64 88
  %".55" = load i64, ptr %".54"
  %".56" = sub i64 %".55", 0
  %".57" = icmp sgt i64 %".56", 0
  %".58" = select  i1 %".57", i64 %".56", i64 0
  %".59" = shl i64 1, %".58"
  %".60" = mul i64 %".59", 1
  %".61" = lshr i64 %"k", %".58"
  %".62" = udiv i64 %".61", 1
  %".63" = mul i64 %".62", 4
  %".64" = mul i64 %".62", 16
  %".65" = getelementptr i8, ptr %"context", i64 96
  %".66" = load i64, ptr %".65"
  %".67" = lshr i64 %".66", %".55"
  %".68" = icmp sgt i64 %".67", 16
  %".69" = select  i1 %".68", i64 %".67", i64 16
  br label %"carried.head"
loop.body.else:
  %".130" = sdiv i64 %"k", 1
  %".131" = add i64 %".130", 8
  %".132" = sub i64 %".131", 1
  %".133" = sdiv i64 %".132", 8
  br label %"carried.head.1"
loop.body.endif:
  %".190" = phi  i64 [%".128", %"carried.done"], [%".188", %"carried.done.2"]
  %".191" = phi  ptr [%".125", %"carried.done"], [%".139", %"carried.done.2"]
  %".192" = phi  ptr [%".127", %"carried.done"], [%".140", %"carried.done.2"]
  %".193" = phi  <4 x float> [%".76", %"carried.done"], [%".141", %"carried.done.2"]
  %".194" = icmp sgt i64 %".190", 0
  br i1 %".194", label %"loop.body.endif.if", label %"loop.body.endif.endif"
carried.body:
  %".79" = mul i64 %".60", %".38"
  br label %"loop.head.1"
carried.done:
  %".123" = mul i64 %".62", %".60"
  %".124" = mul i64 %".123", 4
  %".125" = getelementptr i8, ptr %".22", i64 %".124"
  %".126" = mul i64 %".123", 16
  %".127" = getelementptr i8, ptr %".24", i64 %".126"
  %".128" = sub i64 %"k", %".123"
  br label %"loop.body.endif"
carried.head:
  %".71" = phi  i64 [0, %"loop.body.if"], [%".121", %"carried.done.1"]
  %".72" = phi  ptr [%".43", %"loop.body.if"], [%".87", %"carried.done.1"]
  %".73" = phi  ptr [%".48", %"loop.body.if"], [%".96", %"carried.done.1"]
  %".74" = phi  ptr [%".22", %"loop.body.if"], [%".118", %"carried.done.1"]
  %".75" = phi  ptr [%".24", %"loop.body.if"], [%".120", %"carried.done.1"]
  %".76" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.if"], [%".109", %"carried.done.1"]
  %".77" = icmp slt i64 %".71", %".62"
  br i1 %".77", label %"carried.body", label %"carried.done"
loop.head.1:
  %"index.1" = phi  i64 [0, %"carried.body"], [%".84", %"loop.body.1"]
  %".81" = icmp slt i64 %"index.1", %".79"
  br i1 %".81", label %"loop.body.1", label %"loop.done"
loop.body.1:
  %".82" = getelementptr i8, ptr %".72", i64 %"index.1"
  call void @"llvm.prefetch.p0"(ptr %".82", i32 0, i32 2, i32 1)
  %".84" = add nsw i64 %"index.1", 64
  br label %"loop.head.1"
loop.done:
  %".87" = getelementptr i8, ptr %".72", i64 %".79"
  %".88" = mul i64 %".60", %".47"
  br label %"loop.head.2"
loop.head.2:
  %"index.2" = phi  i64 [0, %"loop.done"], [%".93", %"loop.body.2"]
  %".90" = icmp slt i64 %"index.2", %".88"
  br i1 %".90", label %"loop.body.2", label %"loop.done.1"
loop.body.2:
  %".91" = getelementptr i8, ptr %".73", i64 %"index.2"
  call void @"llvm.prefetch.p0"(ptr %".91", i32 0, i32 2, i32 1)
  %".93" = add nsw i64 %"index.2", 64
  br label %"loop.head.2"
loop.done.1:
  %".96" = getelementptr i8, ptr %".73", i64 %".88"
  br label %"carried.body.1"
carried.body.1:
  %".98" = phi  i64 [0, %"loop.done.1"], [%".114", %"carried.body.1"]
  %".99" = phi  ptr [%".74", %"loop.done.1"], [%".111", %"carried.body.1"]
  %".100" = phi  ptr [%".75", %"loop.done.1"], [%".113", %"carried.body.1"]
  %".101" = phi  <4 x float> [%".76", %"loop.done.1"], [%".109", %"carried.body.1"]
  %".102" = getelementptr i8, ptr %".100", i64 %".69"
  call void @"llvm.prefetch.p0"(ptr %".102", i32 0, i32 3, i32 1)
  %".104" = load <4 x float>, ptr %".100", align 4
  %".105" = load float, ptr %".99", align 4
  %".106" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".105", i64 0
  %".107" = shufflevector <4 x float> %".106", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".108" = fmul <4 x float> %".107", %".104"
  %".109" = fadd <4 x float> %".108", %".101"
  %".110" = getelementptr i8, ptr %".99", i64 %".63"
  %".111" = call ptr asm  "", "=r,0"(ptr %".110")
  %".112" = getelementptr i8, ptr %".100", i64 %".64"
  %".113" = call ptr asm  "", "=r,0"(ptr %".112")
  %".114" = add i64 %".98", 1
  %".115" = icmp slt i64 %".114", %".59"
  br i1 %".115", label %"carried.body.1", label %"carried.done.1"
carried.done.1:
  %".117" = getelementptr i8, ptr %".74", i64 4
  %".118" = call ptr asm  "", "=r,0"(ptr %".117")
  %".119" = getelementptr i8, ptr %".75", i64 16
  %".120" = call ptr asm  "", "=r,0"(ptr %".119")
  %".121" = add i64 %".71", 1
  br label %"carried.head"
carried.body.2:
  %".144" = icmp sgt i64 %".136", 8
  %".145" = select  i1 %".144", i64 8, i64 %".136"
  %".146" = mul i64 %".145", 1
  %".147" = mul i64 %".146", %".38"
  br label %"loop.head.3"
carried.done.2:
  %".188" = srem i64 %"k", 1
  br label %"loop.body.endif"
carried.head.1:
  %".135" = phi  i64 [0, %"loop.body.else"], [%".186", %"carried.done.3"]
  %".136" = phi  i64 [%".130", %"loop.body.else"], [%".185", %"carried.done.3"]
  %".137" = phi  ptr [%".43", %"loop.body.else"], [%".155", %"carried.done.3"]
  %".138" = phi  ptr [%".48", %"loop.body.else"], [%".164", %"carried.done.3"]
  %".139" = phi  ptr [%".22", %"loop.body.else"], [%".179", %"carried.done.3"]
  %".140" = phi  ptr [%".24", %"loop.body.else"], [%".181", %"carried.done.3"]
  %".141" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body.else"], [%".177", %"carried.done.3"]
  %".142" = icmp slt i64 %".135", %".133"
  br i1 %".142", label %"carried.body.2", label %"carried.done.2"
loop.head.3:
  %"index.3" = phi  i64 [0, %"carried.body.2"], [%".152", %"loop.body.3"]
  %".149" = icmp slt i64 %"index.3", %".147"
  br i1 %".149", label %"loop.body.3", label %"loop.done.2"
loop.body.3:
  %".150" = getelementptr i8, ptr %".137", i64 %"index.3"
  call void @"llvm.prefetch.p0"(ptr %".150", i32 0, i32 2, i32 1)
  %".152" = add nsw i64 %"index.3", 64
  br label %"loop.head.3"
loop.done.2:
  %".155" = getelementptr i8, ptr %".137", i64 %".147"
  %".156" = mul i64 %".146", %".47"
  br label %"loop.head.4"
loop.head.4:
  %"index.4" = phi  i64 [0, %"loop.done.2"], [%".161", %"loop.body.4"]
  %".158" = icmp slt i64 %"index.4", %".156"
  br i1 %".158", label %"loop.body.4", label %"loop.done.3"
loop.body.4:
  %".159" = getelementptr i8, ptr %".138", i64 %"index.4"
  call void @"llvm.prefetch.p0"(ptr %".159", i32 0, i32 2, i32 1)
  %".161" = add nsw i64 %"index.4", 64
  br label %"loop.head.4"
loop.done.3:
  %".164" = getelementptr i8, ptr %".138", i64 %".156"
  %".165" = getelementptr i8, ptr %".139", i64 64
  call void @"llvm.prefetch.p0"(ptr %".165", i32 0, i32 3, i32 1)
  br label %"carried.body.3"
carried.body.3:
  %".168" = phi  i64 [0, %"loop.done.3"], [%".182", %"carried.body.3"]
  %".169" = phi  ptr [%".139", %"loop.done.3"], [%".179", %"carried.body.3"]
  %".170" = phi  ptr [%".140", %"loop.done.3"], [%".181", %"carried.body.3"]
  %".171" = phi  <4 x float> [%".141", %"loop.done.3"], [%".177", %"carried.body.3"]
  %".172" = load <4 x float>, ptr %".170", align 4
  %".173" = load float, ptr %".169", align 4
  %".174" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".173", i64 0
  %".175" = shufflevector <4 x float> %".174", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".176" = fmul <4 x float> %".175", %".172"
  %".177" = fadd <4 x float> %".176", %".171"
  %".178" = getelementptr i8, ptr %".169", i64 4
  %".179" = call ptr asm  "", "=r,0"(ptr %".178")
  %".180" = getelementptr i8, ptr %".170", i64 16
  %".181" = call ptr asm  "", "=r,0"(ptr %".180")
  %".182" = add i64 %".168", 1
  %".183" = icmp slt i64 %".182", %".145"
  br i1 %".183", label %"carried.body.3", label %"carried.done.3"
carried.done.3:
  %".185" = sub i64 %".136", %".145"
  %".186" = add i64 %".135", 1
  br label %"carried.head.1"
loop.body.endif.if:
  br label %"carried.body.4"
loop.body.endif.endif:
  %".215" = phi  ptr [%".191", %"loop.body.endif"], [%".208", %"carried.done.4"]
  %".216" = phi  ptr [%".192", %"loop.body.endif"], [%".210", %"carried.done.4"]
  %".217" = phi  <4 x float> [%".193", %"loop.body.endif"], [%".206", %"carried.done.4"]
  %".218" = mul i64 %".11", 0
  %".219" = getelementptr i8, ptr %".28", i64 %".218"
  %".220" = getelementptr i8, ptr %"context", i64 40
  %".221" = load i64, ptr %".220"
  %".222" = icmp ne i64 %".221", 0
  br i1 %".222", label %"loop.body.endif.endif.if", label %"loop.body.endif.endif.endif"
carried.body.4:
  %".197" = phi  i64 [0, %"loop.body.endif.if"], [%".211", %"carried.body.4"]
  %".198" = phi  ptr [%".191", %"loop.body.endif.if"], [%".208", %"carried.body.4"]
  %".199" = phi  ptr [%".192", %"loop.body.endif.if"], [%".210", %"carried.body.4"]
  %".200" = phi  <4 x float> [%".193", %"loop.body.endif.if"], [%".206", %"carried.body.4"]
  %".201" = load <4 x float>, ptr %".199", align 4
  %".202" = load float, ptr %".198", align 4
  %".203" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".202", i64 0
  %".204" = shufflevector <4 x float> %".203", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".205" = fmul <4 x float> %".204", %".201"
  %".206" = fadd <4 x float> %".205", %".200"
  %".207" = getelementptr i8, ptr %".198", i64 4
  %".208" = call ptr asm  "", "=r,0"(ptr %".207")
  %".209" = getelementptr i8, ptr %".199", i64 16
  %".210" = call ptr asm  "", "=r,0"(ptr %".209")
  %".211" = add i64 %".197", 1
  %".212" = icmp slt i64 %".211", %".190"
  br i1 %".212", label %"carried.body.4", label %"carried.done.4"
carried.done.4:
  br label %"loop.body.endif.endif"
loop.body.endif.endif.if:
  %".224" = load <4 x float>, ptr %".219", align 4
  %".225" = fadd <4 x float> %".217", %".224"
  br label %"loop.body.endif.endif.endif"
loop.body.endif.endif.endif:
  %".227" = phi  <4 x float> [%".217", %"loop.body.endif.endif"], [%".225", %"loop.body.endif.endif.if"]
  store <4 x float> %".227", ptr %".219", align 4
  %".229" = getelementptr i8, ptr %"context", i64 48
  %".230" = load i64, ptr %".229"
  %".231" = icmp ugt i64 %".230", 1
  br i1 %".231", label %"loop.body.endif.endif.endif.if", label %"loop.body.endif.endif.endif.endif"
loop.body.endif.endif.endif.if:
  %".233" = inttoptr i64 %".230" to void (ptr, ptr, i64, i64, i64, i64)*
  call void %".233"(ptr %"context", ptr %".28", i64 %".29", i64 %".30", i64 1, i64 4)
  br label %"loop.body.endif.endif.endif.endif"
loop.body.endif.endif.endif.endif:
  %".236" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.4:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

!0 = !{ !"branch_weights", i32 1, i32 99 }