; ModuleID = "schedule"
target triple = "unknown-unknown-unknown"
target datalayout = ""

define void @"scaled"(ptr %".1", i64 %".2")
{
entry:
  %".4" = getelementptr i8, ptr %".1", i64 16
  %".5" = load i64, ptr %".4"
  %".6" = getelementptr i8, ptr %".1", i64 24
  %".7" = load i64, ptr %".6"
  %".8" = getelementptr i8, ptr %".1", i64 48
  %".9" = load ptr, ptr %".8"
  %".10" = getelementptr i8, ptr %".1", i64 56
  %".11" = load ptr, ptr %".10"
  %".12" = getelementptr i8, ptr %".1", i64 64
  %".13" = load ptr, ptr %".12"
  %".14" = getelementptr i8, ptr %".1", i64 32
  %".15" = load i64, ptr %".14"
  %".16" = getelementptr i8, ptr %".1", i64 40
  %".17" = load i64, ptr %".16"
  %".18" = mul i64 %".17", %".2"
  %".19" = add i64 %".15", %".18"
  %".20" = inttoptr i64 %".19" to ptr
  %".21" = alloca <8 x float>, align 64
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %".21"
  %".23" = getelementptr i8, ptr %".1", i64 8
  %".24" = load i64, ptr %".23"
  br label %"workers.take"
workers.take:
  %".26" = atomicrmw add ptr %".1", i64 %".24" monotonic
  %".27" = icmp slt i64 %".26", %".5"
  br i1 %".27", label %"workers.execute", label %"workers.done"
workers.execute:
  %".29" = add i64 %".26", %".24"
  %".30" = icmp slt i64 %".29", %".5"
  %".31" = select  i1 %".30", i64 %".29", i64 %".5"
  br label %"loop.head"
workers.done:
  ret void
loop.head:
  %"index" = phi  i64 [%".26", %"workers.execute"], [%".61", %"loop.done"]
  %".33" = icmp slt i64 %"index", %".31"
  br i1 %".33", label %"loop.body", label %"loop.done.1"
loop.body:
  %".34" = urem i64 %"index", %".5"
  %".35" = urem i64 %".34", %".5"
  %".36" = add nuw nsw i64 %".35", 1
  %".37" = mul nuw nsw i64 %".35", %".7"
  %".38" = udiv i64 %".37", %".5"
  %".39" = mul nuw nsw i64 %".36", %".7"
  %".40" = udiv i64 %".39", %".5"
  br label %"loop.head.1"
loop.head.1:
  %"index.1" = phi  i64 [%".38", %"loop.body"], [%".58", %"loop.body.1"]
  %".42" = icmp slt i64 %"index.1", %".40"
  br i1 %".42", label %"loop.body.1", label %"loop.done"
loop.body.1:
  %".43" = mul i64 0, %".7"
  %".44" = add i64 %".43", %"index.1"
  %".45" = mul i64 8, %".44"
  %".46" = add i64 %".45", 0
  %".47" = getelementptr float, ptr %".9", i64 %".46"
  %".48" = load <8 x float>, ptr %".47", align 4
  %".49" = getelementptr float, ptr %".11", i64 %".44"
  %".50" = load float, ptr %".49", align 4
  %".51" = insertelement <8 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %".50", i64 0
  %".52" = shufflevector <8 x float> %".51", <8 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <8 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %".53" = fmul <8 x float> %".48", %".52"
  %".54" = mul i64 8, %".44"
  %".55" = add i64 %".54", 0
  %".56" = getelementptr float, ptr %".13", i64 %".55"
  store <8 x float> %".53", ptr %".56", align 4
  %".58" = add nsw i64 %"index.1", 1
  br label %"loop.head.1"
loop.done:
  %".61" = add nsw i64 %"index", 1
  br label %"loop.head"
loop.done.1:
  br label %"workers.take"
}
