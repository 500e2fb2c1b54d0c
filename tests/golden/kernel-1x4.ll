; ModuleID = "kernel"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"gemm_float32_sse2_1x4_c1_row_packed_0f2816a5b58c"(ptr noalias %"context", ptr noalias %"a", ptr noalias %"b", ptr noalias %"c", i64 %"row", i64 %"column", i64 %"k", i64 %"tiles")
{
entry:
  %".10" = getelementptr i8, ptr %"context", i64 0
  %".11" = load i64, ptr %".10"
  %".12" = getelementptr i8, ptr %"context", i64 24
  %".13" = load i64, ptr %".12"
  %".14" = getelementptr i8, ptr %"context", i64 8
  %".15" = load i64, ptr %".14"
  br label %"loop.head"
loop.head:
  %"index" = phi  i64 [0, %"entry"], [%".69", %"carried.done.endif"]
  %".17" = icmp slt i64 %"index", %"tiles"
  br i1 %".17", label %"loop.body", label %"loop.done"
loop.body:
  %".18" = mul i64 %"index", %".15"
  %".19" = getelementptr i8, ptr %"a", i64 %".18"
  %".20" = mul i64 %"index", 1
  %".21" = mul i64 %".20", %".13"
  %".22" = getelementptr i8, ptr %"c", i64 %".21"
  %".23" = mul i64 %"index", 1
  %".24" = add i64 %"row", %".23"
  %".25" = mul i64 %".13", 0
  %".26" = getelementptr i8, ptr %".22", i64 %".25"
  %".27" = getelementptr i8, ptr %".26", i64 0
  call void @"llvm.prefetch.p0"(ptr %".27", i32 1, i32 3, i32 1)
  %".29" = getelementptr i8, ptr %".26", i64 15
  call void @"llvm.prefetch.p0"(ptr %".29", i32 1, i32 3, i32 1)
  %".31" = icmp sgt i64 %"k", 0
  br i1 %".31", label %"carried.body", label %"carried.done"
carried.body:
  %".33" = phi  i64 [0, %"loop.body"], [%".51", %"carried.body"]
  %".34" = phi  ptr [%".19", %"loop.body"], [%".49", %"carried.body"]
  %".35" = phi  ptr [%"b", %"loop.body"], [%".50", %"carried.body"]
  %".36" = phi  <4 x float> [<float              0x0, float              0x0, float              0x0, float              0x0>, %"loop.body"], [%".48", %"carried.body"]
  %".37" = getelementptr i8, ptr %".35", i64 4096
  %".38" = getelementptr i8, ptr %".37", i64 0
  call void @"llvm.prefetch.p0"(ptr %".38", i32 0, i32 3, i32 1)
  %".40" = getelementptr i8, ptr %".35", i64 0
  %".41" = load <4 x float>, ptr %".40", align 4
  %".42" = mul i64 %".11", 0
  %".43" = getelementptr i8, ptr %".34", i64 %".42"
  %".44" = load float, ptr %".43", align 4
  %".45" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".44", i32 0
  %".46" = shufflevector <4 x float> %".45", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".47" = fmul <4 x float> %".46", %".41"
  %".48" = fadd <4 x float> %".47", %".36"
  %".49" = getelementptr i8, ptr %".34", i64 4
  %".50" = getelementptr i8, ptr %".35", i64 16
  %".51" = add i64 %".33", 1
  %".52" = icmp slt i64 %".51", %"k"
  br i1 %".52", label %"carried.body", label %"carried.done"
carried.done:
  %".54" = phi  ptr [%".19", %"loop.body"], [%".49", %"carried.body"]
  %".55" = phi  ptr [%"b", %"loop.body"], [%".50", %"carried.body"]
  %".56" = phi  <4 x float> [<float              0x0, float              0x0, float              0x0, float              0x0>, %"loop.body"], [%".48", %"carried.body"]
  %".57" = mul i64 %".13", 0
  %".58" = getelementptr i8, ptr %".22", i64 %".57"
  %".59" = getelementptr i8, ptr %".58", i64 0
  %".60" = getelementptr i8, ptr %"context", i64 40
  %".61" = load i64, ptr %".60"
  %".62" = icmp ne i64 %".61", 0
  br i1 %".62", label %"carried.done.if", label %"carried.done.endif"
carried.done.if:
  %".64" = load <4 x float>, ptr %".59", align 4
  %".65" = fadd <4 x float> %".56", %".64"
  br label %"carried.done.endif"
carried.done.endif:
  %".67" = phi  <4 x float> [%".56", %"carried.done"], [%".65", %"carried.done.if"]
  store <4 x float> %".67", ptr %".59", align 4
  %".69" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")
