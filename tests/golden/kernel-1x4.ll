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
  %"index" = phi  i64 [0, %"entry"], [%".146", %"carried.done.endif"]
  %".16" = icmp slt i64 %"index", %".14"
  br i1 %".16", label %"loop.body", label %"loop.done.2"
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
  %".56" = sdiv i64 %"k", 1
  %".57" = add i64 %".56", 16
  %".58" = sub i64 %".57", 1
  %".59" = sdiv i64 %".58", 16
  %".60" = icmp sgt i64 %".59", 0
  br i1 %".60", label %"carried.body", label %"carried.done"
carried.body:
  %".62" = phi  i64 [0, %"loop.body"], [%".125", %"carried.done.1"]
  %".63" = phi  i64 [%".56", %"loop.body"], [%".124", %"carried.done.1"]
  %".64" = phi  ptr [%".46", %"loop.body"], [%".80", %"carried.done.1"]
  %".65" = phi  ptr [%".51", %"loop.body"], [%".90", %"carried.done.1"]
  %".66" = phi  ptr [%".22", %"loop.body"], [%".121", %"carried.done.1"]
  %".67" = phi  ptr [%".24", %"loop.body"], [%".122", %"carried.done.1"]
  %".68" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body"], [%".123", %"carried.done.1"]
  %".69" = icmp sgt i64 %".63", 16
  %".70" = select  i1 %".69", i64 16, i64 %".63"
  %".71" = mul i64 %".70", 1
  %".72" = mul i64 %".71", %".41"
  br label %"loop.head.1"
carried.done:
  %".128" = phi  i64 [%".56", %"loop.body"], [%".124", %"carried.done.1"]
  %".129" = phi  ptr [%".46", %"loop.body"], [%".80", %"carried.done.1"]
  %".130" = phi  ptr [%".51", %"loop.body"], [%".90", %"carried.done.1"]
  %".131" = phi  ptr [%".22", %"loop.body"], [%".121", %"carried.done.1"]
  %".132" = phi  ptr [%".24", %"loop.body"], [%".122", %"carried.done.1"]
  %".133" = phi  <4 x float> [<float 0.0, float 0.0, float 0.0, float 0.0>, %"loop.body"], [%".123", %"carried.done.1"]
  %".134" = mul i64 %".11", 0
  %".135" = getelementptr i8, ptr %".28", i64 %".134"
  %".136" = getelementptr i8, ptr %".135", i64 0
  %".137" = getelementptr i8, ptr %"context", i64 40
  %".138" = load i64, ptr %".137"
  %".139" = icmp ne i64 %".138", 0
  br i1 %".139", label %"carried.done.if", label %"carried.done.endif"
loop.head.1:
  %"index.1" = phi  i64 [0, %"carried.body"], [%".77", %"loop.body.1"]
  %".74" = icmp slt i64 %"index.1", %".72"
  br i1 %".74", label %"loop.body.1", label %"loop.done"
loop.body.1:
  %".75" = getelementptr i8, ptr %".64", i64 %"index.1"
  call void @"llvm.prefetch.p0"(ptr %".75", i32 0, i32 2, i32 1)
  %".77" = add nsw i64 %"index.1", 64
  br label %"loop.head.1"
loop.done:
  %".80" = getelementptr i8, ptr %".64", i64 %".72"
  %".81" = mul i64 %".70", 1
  %".82" = mul i64 %".81", %".50"
  br label %"loop.head.2"
loop.head.2:
  %"index.2" = phi  i64 [0, %"loop.done"], [%".87", %"loop.body.2"]
  %".84" = icmp slt i64 %"index.2", %".82"
  br i1 %".84", label %"loop.body.2", label %"loop.done.1"
loop.body.2:
  %".85" = getelementptr i8, ptr %".65", i64 %"index.2"
  call void @"llvm.prefetch.p0"(ptr %".85", i32 0, i32 2, i32 1)
  %".87" = add nsw i64 %"index.2", 64
  br label %"loop.head.2"
loop.done.1:
  %".90" = getelementptr i8, ptr %".65", i64 %".82"
  %".91" = getelementptr i8, ptr %".66", i64 0
  %".92" = getelementptr i8, ptr %".91", i64 64
  call void @"llvm.prefetch.p0"(ptr %".92", i32 0, i32 3, i32 1)
  %".94" = icmp sgt i64 %".70", 0
  br i1 %".94", label %"carried.body.1", label %"carried.done.1"
carried.body.1:
  %".96" = phi  i64 [0, %"loop.done.1"], [%".118", %"carried.body.1.endif"]
  %".97" = phi  ptr [%".66", %"loop.done.1"], [%".116", %"carried.body.1.endif"]
  %".98" = phi  ptr [%".67", %"loop.done.1"], [%".117", %"carried.body.1.endif"]
  %".99" = phi  <4 x float> [%".68", %"loop.done.1"], [%".115", %"carried.body.1.endif"]
  br i1 %".55", label %"carried.body.1.if", label %"carried.body.1.endif", !prof !0
carried.done.1:
  %".121" = phi  ptr [%".66", %"loop.done.1"], [%".116", %"carried.body.1.endif"]
  %".122" = phi  ptr [%".67", %"loop.done.1"], [%".117", %"carried.body.1.endif"]
  %".123" = phi  <4 x float> [%".68", %"loop.done.1"], [%".115", %"carried.body.1.endif"]
  %".124" = sub i64 %".63", %".70"
  %".125" = add i64 %".62", 1
  %".126" = icmp slt i64 %".125", %".59"
  br i1 %".126", label %"carried.body", label %"carried.done"
carried.body.1.if:
  %".101" = getelementptr i8, ptr %".98", i64 4096
  %".102" = getelementptr i8, ptr %".101", i64 0
  %".103" = getelementptr i8, ptr %".102", i64 0
  call void @"llvm.prefetch.p0"(ptr %".103", i32 0, i32 3, i32 1)
  br label %"carried.body.1.endif"
carried.body.1.endif:
  %".106" = getelementptr i8, ptr %".98", i64 0
  %".107" = getelementptr i8, ptr %".106", i64 0
  %".108" = load <4 x float>, ptr %".107", align 4
  %".109" = getelementptr i8, ptr %".97", i64 0
  %".110" = getelementptr i8, ptr %".109", i64 0
  %".111" = load float, ptr %".110", align 4
  %".112" = insertelement <4 x float> <float undef, float undef, float undef, float undef>, float %".111", i32 0
  %".113" = shufflevector <4 x float> %".112", <4 x float> <float undef, float undef, float undef, float undef>, <4 x i32> <i32 0, i32 0, i32 0, i32 0>
  %".114" = fmul <4 x float> %".113", %".108"
  %".115" = fadd <4 x float> %".114", %".99"
  %".116" = getelementptr i8, ptr %".97", i64 4
  %".117" = getelementptr i8, ptr %".98", i64 16
  %".118" = add i64 %".96", 1
  %".119" = icmp slt i64 %".118", %".70"
  br i1 %".119", label %"carried.body.1", label %"carried.done.1"
carried.done.if:
  %".141" = load <4 x float>, ptr %".136", align 4
  %".142" = fadd <4 x float> %".133", %".141"
  br label %"carried.done.endif"
carried.done.endif:
  %".144" = phi  <4 x float> [%".133", %"carried.done"], [%".142", %"carried.done.if"]
  store <4 x float> %".144", ptr %".136", align 4
  %".146" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.2:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

!0 = !{ !"branch_weights", i32 1, i32 99 }