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
  %"index" = phi  i64 [0, %"entry"], [%".72", %"carried.done.endif"]
  %".15" = icmp slt i64 %"index", %"tiles"
  br i1 %".15", label %"loop.body", label %"loop.done"
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
  %".31" = sdiv i64 %"k", 1
  %".32" = icmp sgt i64 %".31", 0
  br i1 %".32", label %"carried.body", label %"carried.done"
carried.body:
  %".34" = phi  i64 [0, %"loop.body"], [%".54", %"carried.body"]
  %".35" = phi  ptr [%".17", %"loop.body"], [%".52", %"carried.body"]
  %".36" = phi  ptr [%"b", %"loop.body"], [%".53", %"carried.body"]
  %".37" = phi  <4 x float> [<float              0x0, float              0x0, float              0x0, float              0x0>, %"loop.body"], [%".51", %"carried.body"]
  %".38" = getelementptr i8, ptr %".36", i64 4096
  %".39" = getelementptr i8, ptr %".38", i64 0
  %".40" = getelementptr i8, ptr %".39", i64 0
  call void @"llvm.prefetch.p0"(ptr %".40", i32 0, i32 3, i32 1)
  %".42" = getelementptr i8, ptr %".36", i64 0
  %".43" = getelementptr i8, ptr %".42", i64 0
  %".44" = load <4 x float>, ptr %".43", align 4
  %".45" = getelementptr i8, ptr %".35", i64 0
  %".46" = getelementptr i8, ptr %".45", i64 0
  %".47" = load float, ptr %".46", align 4
  %".48" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".47", i32 0
  %".49" = shufflevector <4 x float> %".48", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".50" = fmul <4 x float> %".49", %".44"
  %".51" = fadd <4 x float> %".50", %".37"
  %".52" = getelementptr i8, ptr %".35", i64 4
  %".53" = getelementptr i8, ptr %".36", i64 16
  %".54" = add i64 %".34", 1
  %".55" = icmp slt i64 %".54", %".31"
  br i1 %".55", label %"carried.body", label %"carried.done"
carried.done:
  %".57" = phi  ptr [%".17", %"loop.body"], [%".52", %"carried.body"]
  %".58" = phi  ptr [%"b", %"loop.body"], [%".53", %"carried.body"]
  %".59" = phi  <4 x float> [<float              0x0, float              0x0, float              0x0, float              0x0>, %"loop.body"], [%".51", %"carried.body"]
  %".60" = mul i64 %".11", 0
  %".61" = getelementptr i8, ptr %".20", i64 %".60"
  %".62" = getelementptr i8, ptr %".61", i64 0
  %".63" = getelementptr i8, ptr %"context", i64 40
  %".64" = load i64, ptr %".63"
  %".65" = icmp ne i64 %".64", 0
  br i1 %".65", label %"carried.done.if", label %"carried.done.endif"
carried.done.if:
  %".67" = load <4 x float>, ptr %".62", align 4
  %".68" = fadd <4 x float> %".59", %".67"
  br label %"carried.done.endif"
carried.done.endif:
  %".70" = phi  <4 x float> [%".59", %"carried.done"], [%".68", %"carried.done.if"]
  store <4 x float> %".70", ptr %".62", align 4
  %".72" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")
