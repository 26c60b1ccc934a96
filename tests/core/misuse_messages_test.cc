// What core says to the mistakes that one makes first: each message has the line to write.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/module.h"
#include "tests/core/test_ops.h"
#include "tests/message_of.h"

namespace lockstep {
namespace {

using test::LeafOf;
using test::MessageOf;
using test::Mul;
using test::Scale;
using test::Sum;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr char kInPlace[] = "{ const NoGrad no_grad; w.CopyFrom(w - lr * w.grad()); }";

// w = w - lr * w.grad() makes w a result, whose gradient nobody keeps.
TEST(MisuseTest, ALeafThatIsReplacedByAResult) {
  Tensor w = LeafOf({1, 2});
  w = Scale(w, 0.5);
  EXPECT_THAT(MessageOf([&] { w.ZeroGrad(); }),
              AllOf(HasSubstr("ZeroGrad() of f64[2] on cpu, the result of 'test_scale'"),
                    HasSubstr(kInPlace)));
  EXPECT_THAT(MessageOf([&] { w.grad(); }), AllOf(HasSubstr("grad() of"), HasSubstr(kInPlace)));
  LeafOf({1}).ZeroGrad();
  LeafOf({1}).Detach().ZeroGrad();  // a frozen one among others
  EXPECT_THAT(MessageOf([&] { w.Detach().grad(); }), HasSubstr("SetRequiresGrad()"));
}

TEST(MisuseTest, AGradientThatBackwardHasNotMade) {
  const Tensor w = LeafOf({1, 2});
  const char kUnmade[] = "a gradient that Backward has not made";
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { w.grad().device(); }, [&] { w.grad().raw_data(); },
           [&] { w.grad().ToVector<double>(); }, [&] { w.grad().Item(); },
           [&] { w.grad().Clone(); }, [&] { w.Detach().CopyFrom(w.grad()); }}) {
    EXPECT_THAT(MessageOf(use), AllOf(HasSubstr(kUnmade), Not(HasSubstr("moved from"))));
  }
  EXPECT_EQ(w.grad().Describe(), kUnmade);
  Backward(Sum(w));
  EXPECT_EQ(w.grad().ToVector<double>(), (std::vector<double>{1, 1}));
  w.ZeroGrad();
  EXPECT_THAT(MessageOf([&] { w.grad().device(); }), HasSubstr("none since ZeroGrad"));
}

TEST(MisuseTest, ACopyThatWouldLoseAGradient) {
  const Tensor w = LeafOf({1, 2});
  const char kUnder[] = "{ const NoGrad no_grad; w.CopyFrom(source); }";
  EXPECT_THAT(MessageOf([&] { w.Detach().CopyFrom(Scale(w, 2)); }),
              AllOf(HasSubstr("CopyFrom: the source, f64[2] on cpu, requires a gradient"),
                    HasSubstr(kUnder)));
  EXPECT_THAT(MessageOf([&] { w.CopyFrom(Tensor::Zeros({2}, DType::kF64)); }),
              AllOf(HasSubstr("CopyFrom: the tensor that is written to, f64[2] on cpu, requires"),
                    HasSubstr(kUnder)));
}

TEST(MisuseTest, ASecondBackward) {
  const Tensor loss = Sum(LeafOf({1, 2}));
  Backward(loss);
  EXPECT_THAT(MessageOf<Error>([&] { Backward(loss); }),
              HasSubstr("Backward(loss, {}, {.retain_graph = true});"));
}

// ---- Modules ----

class Gain : public Layer {
 protected:
  Tensor Forward(const Tensor& x) override {
    LS_CHECK(x.ndim() == 1, "gain: x must be a vector, got ", x.Describe());
    LS_CHECK(x.device() == weight_->value().device(), "gain: x is on ", x.device(),
             ", the weight on ", weight_->value().device());
    return Mul(x, weight_->value());
  }

 private:
  std::shared_ptr<Parameter> weight_ = AddParameter("weight", {2}, nullptr, false);
};

class Model : public Layer {
 public:
  Child<Layer>& gain() { return gain_; }

 protected:
  Tensor Forward(const Tensor& x) override { return gain_(x); }

 private:
  Child<Layer> gain_{this, "gain", std::make_shared<Gain>()};
};

TEST(MisuseTest, ErrorsNameTheInnermostModuleOnce) {
  Model model;
  model.Materialize(kCpu, 1);
  EXPECT_THAT(MessageOf([&] {
                model(LeafOf({1, 2}).View({1, 2}));
              }),
              AllOf(HasSubstr("gain: x must be a vector, got f64[1, 2] on cpu (in the module "
                              "'gain', a lockstep::"),
                    EndsWith("::Gain)"), Not(HasSubstr("Model"))));
  // Another class of errors is not touched.
  struct Failing : Layer {
    Tensor Forward(const Tensor&) override { throw IoError("the disk is full"); }
  };
  model.ReplaceChild("gain", std::make_shared<Failing>());
  EXPECT_EQ(MessageOf<IoError>([&] { model(LeafOf({1, 2})); }), "the disk is full");
}

TEST(MisuseTest, AModelWithoutMemory) {
  Model model;
  EXPECT_THAT(MessageOf([&] { model(Tensor::Zeros({2}, DType::kF32)); }),
              AllOf(HasSubstr("the weight on meta (in a lockstep::"),
                    HasSubstr("call Materialize(device, seed) on the model"),
                    HasSubstr("Child<nn::Linear> fc{this, \"fc\", 2, 3};")));
}

TEST(MisuseTest, ANewChildWithoutMemory) {
  Model model;
  model.Materialize(kCpu, 1);
  model.ReplaceChild("gain", std::make_shared<Gain>());
  EXPECT_THAT(MessageOf([&] { model(Tensor::Zeros({2}, DType::kF32)); }),
              HasSubstr("call Materialize(device, seed) on the model"));
}

TEST(MisuseTest, NullInPlaceOfAChild) {
  Model model;
  EXPECT_THAT(MessageOf([&] { model.ReplaceChild("gain", nullptr); }),
              HasSubstr("the child 'gain' must be a module, not null"));
}

}  // namespace
}  // namespace lockstep
