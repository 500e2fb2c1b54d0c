; ModuleID = "kernel"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"gemm_float32_sse2_1x4_c1_row_packed_0f2816a5b58c"(ptr noalias %"context", ptr noalias %"a", ptr noalias %"b", ptr noalias %"c", i64 %"row", i64 %"column", i64 %"k", i64 %"tiles")
{
entry:
  %".10" = getelementptr i8, ptr %"context", i64 24
  %".11" = load i64, ptr %".10"
  %".12" = getelementptr i8, ptr %"context", i64 8
  %".13" = load i64, ptr %".12"
  br label %"loop.head"
loop.head:
  %"index" = phi  i64 [0, %"entry"], [%".136", %"carried.done.endif"]
  %".15" = icmp slt i64 %"index", %"tiles"
  br i1 %".15", label %"loop.body", label %"loop.done.2"
loop.body:
  %".16" = mul i64 %"index", %".13"
  %".17" = getelementptr i8, ptr %"a", i64 %".16"
  %".18" = mul i64 %"index", 1
  %".19" = mul i64 %".18", %".11"
  %".20" = getelementptr i8, ptr %"c", i64 %".19"
  %".21" = mul i64 %"index", 1
  %".22" = add i64 %"row", %".21"
  %".23" = mul i64 %".11", 0
  %".24" = getelementptr i8, ptr %".20", i64 %".23"
  %".25" = getelementptr i8, ptr %".24", i64 0
  call void @"llvm.prefetch.p0"(ptr %".25", i32 1, i32 3, i32 1)
  %".27" = getelementptr i8, ptr %".24", i64 15
  call void @"llvm.prefetch.p0"(ptr %".27", i32 1, i32 3, i32 1)
  %".29" = getelementptr i8, ptr %"context", i64 0
  %".30" = load i64, ptr %".29"
  %".31" = getelementptr i8, ptr %"context", i64 64
  %".32" = load i64, ptr %".31"
  %".33" = getelementptr i8, ptr %"context", i64 56
  %".34" = load ptr, ptr %".33"
  %".35" = mul i64 %"index", %"k"
  %".36" = mul i64 %".35", %".32"
  %".37" = getelementptr i8, ptr %".34", i64 %".36"
  %".38" = getelementptr i8, ptr %"context", i64 72
  %".39" = load i64, ptr %".38"
  %".40" = icmp ne i64 %".39", 0
  %".41" = select  i1 %".40", i64 4, i64 0
  %".42" = getelementptr i8, ptr %".17", i64 %".39"
  %".43" = getelementptr i8, ptr %"context", i64 80
  %".44" = load i64, ptr %".43"
  %".45" = icmp slt i64 %"index", %".44"
  %".46" = sdiv i64 %"k", 1
  %".47" = add i64 %".46", 16
  %".48" = sub i64 %".47", 1
  %".49" = sdiv i64 %".48", 16
  %".50" = icmp sgt i64 %".49", 0
  br i1 %".50", label %"carried.body", label %"carried.done"
carried.body:
  %".52" = phi  i64 [0, %"loop.body"], [%".115", %"carried.done.1"]
  %".53" = phi  i64 [%".46", %"loop.body"], [%".114", %"carried.done.1"]
  %".54" = phi  ptr [%".37", %"loop.body"], [%".70", %"carried.done.1"]
  %".55" = phi  ptr [%".42", %"loop.body"], [%".80", %"carried.done.1"]
  %".56" = phi  ptr [%".17", %"loop.body"], [%".111", %"carried.done.1"]
  %".57" = phi  ptr [%"b", %"loop.body"], [%".112", %"carried.done.1"]
  %".58" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body"], [%".113", %"carried.done.1"]
  %".59" = icmp sgt i64 %".53", 16
  %".60" = select  i1 %".59", i64 16, i64 %".53"
  %".61" = mul i64 %".60", 1
  %".62" = mul i64 %".61", %".32"
  br label %"loop.head.1"
carried.done:
  %".118" = phi  i64 [%".46", %"loop.body"], [%".114", %"carried.done.1"]
  %".119" = phi  ptr [%".37", %"loop.body"], [%".70", %"carried.done.1"]
  %".120" = phi  ptr [%".42", %"loop.body"], [%".80", %"carried.done.1"]
  %".121" = phi  ptr [%".17", %"loop.body"], [%".111", %"carried.done.1"]
  %".122" = phi  ptr [%"b", %"loop.body"], [%".112", %"carried.done.1"]
  %".123" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body"], [%".113", %"carried.done.1"]
  %".124" = mul i64 %".11", 0
  %".125" = getelementptr i8, ptr %".20", i64 %".124"
  %".126" = getelementptr i8, ptr %".125", i64 0
  %".127" = getelementptr i8, ptr %"context", i64 40
  %".128" = load i64, ptr %".127"
  %".129" = icmp ne i64 %".128", 0
  br i1 %".129", label %"carried.done.if", label %"carried.done.endif"
loop.head.1:
  %"index.1" = phi  i64 [0, %"carried.body"], [%".67", %"loop.body.1"]
  %".64" = icmp slt i64 %"index.1", %".62"
  br i1 %".64", label %"loop.body.1", label %"loop.done"
loop.body.1:
  %".65" = getelementptr i8, ptr %".54", i64 %"index.1"
  call void @"llvm.prefetch.p0"(ptr %".65", i32 0, i32 2, i32 1)
  %".67" = add nsw i64 %"index.1", 64
  br label %"loop.head.1"
loop.done:
  %".70" = getelementptr i8, ptr %".54", i64 %".62"
  %".71" = mul i64 %".60", 1
  %".72" = mul i64 %".71", %".41"
  br label %"loop.head.2"
loop.head.2:
  %"index.2" = phi  i64 [0, %"loop.done"], [%".77", %"loop.body.2"]
  %".74" = icmp slt i64 %"index.2", %".72"
  br i1 %".74", label %"loop.body.2", label %"loop.done.1"
loop.body.2:
  %".75" = getelementptr i8, ptr %".55", i64 %"index.2"
  call void @"llvm.prefetch.p0"(ptr %".75", i32 0, i32 2, i32 1)
  %".77" = add nsw i64 %"index.2", 64
  br label %"loop.head.2"
loop.done.1:
  %".80" = getelementptr i8, ptr %".55", i64 %".72"
  %".81" = getelementptr i8, ptr %".56", i64 0
  %".82" = getelementptr i8, ptr %".81", i64 64
  call void @"llvm.prefetch.p0"(ptr %".82", i32 0, i32 3, i32 1)
  %".84" = icmp sgt i64 %".60", 0
  br i1 %".84", label %"carried.body.1", label %"carried.done.1"
carried.body.1:
  %".86" = phi  i64 [0, %"loop.done.1"], [%".108", %"carried.body.1.endif"]
  %".87" = phi  ptr [%".56", %"loop.done.1"], [%".106", %"carried.body.1.endif"]
  %".88" = phi  ptr [%".57", %"loop.done.1"], [%".107", %"carried.body.1.endif"]
  %".89" = phi  <4 x float> [%".58", %"loop.done.1"], [%".105", %"carried.body.1.endif"]
  br i1 %".45", label %"carried.body.1.if", label %"carried.body.1.endif", !prof !0
carried.done.1:
  %".111" = phi  ptr [%".56", %"loop.done.1"], [%".106", %"carried.body.1.endif"]
  %".112" = phi  ptr [%".57", %"loop.done.1"], [%".107", %"carried.body.1.endif"]
  %".113" = phi  <4 x float> [%".58", %"loop.done.1"], [%".105", %"carried.body.1.endif"]
  %".114" = sub i64 %".53", %".60"
  %".115" = add i64 %".52", 1
  %".116" = icmp slt i64 %".115", %".49"
  br i1 %".116", label %"carried.body", label %"carried.done"
carried.body.1.if:
  %".91" = getelementptr i8, ptr %".88", i64 4096
  %".92" = getelementptr i8, ptr %".91", i64 0
  %".93" = getelementptr i8, ptr %".92", i64 0
  call void @"llvm.prefetch.p0"(ptr %".93", i32 0, i32 3, i32 1)
  br label %"carried.body.1.endif"
carried.body.1.endif:
  %".96" = getelementptr i8, ptr %".88", i64 0
  %".97" = getelementptr i8, ptr %".96", i64 0
  %".98" = load <4 x float>, ptr %".97", align 4
  %".99" = getelementptr i8, ptr %".87", i64 0
  %".100" = getelementptr i8, ptr %".99", i64 0
  %".101" = load float, ptr %".100", align 4
  %".102" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".101", i32 0
  %".103" = shufflevector <4 x float> %".102", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".104" = fmul <4 x float> %".103", %".98"
  %".105" = fadd <4 x float> %".104", %".89"
  %".106" = getelementptr i8, ptr %".87", i64 4
  %".107" = getelementptr i8, ptr %".88", i64 16
  %".108" = add i64 %".86", 1
  %".109" = icmp slt i64 %".108", %".60"
  br i1 %".109", label %"carried.body.1", label %"carried.done.1"
carried.done.if:
  %".131" = load <4 x float>, ptr %".126", align 4
  %".132" = fadd <4 x float> %".123", %".131"
  br label %"carried.done.endif"
carried.done.endif:
  %".134" = phi  <4 x float> [%".123", %"carried.done"], [%".132", %"carried.done.if"]
  store <4 x float> %".134", ptr %".126", align 4
  %".136" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.2:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

!0 = !{ !"branch_weights", i32 1, i32 99 }