// With kernels.cpp, lets PyTorch without CUDA believe in one CUDA device that does nothing: tensors of shapes alone can then be `cuda`
// tensors, and everything that is chosen by device inside of C++ is chosen as on a real one. Loaded before PyTorch, so
// that its symbols are found first. For tests alone: the symbols are PyTorch's own and may change with any release.
#include <ATen/detail/CUDAHooksInterface.h>

#include <optional>

#define SEEN __attribute__((visibility("default")))

namespace {

class WithCudnn final : public at::CUDAHooksInterface {
 public:
  void init() const override {}
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return true; }
  bool supportsBFloat16RNNWithCuDNN() const override { return true; }
  long versionCuDNN() const override { return 91002; }
  long versionRuntimeCuDNN() const override { return 91002; }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }
};

}  // namespace

namespace at::accelerator {
SEEN std::optional<c10::DeviceType> getAccelerator(bool) { return c10::DeviceType::CUDA; }
}  // namespace at::accelerator

namespace at::detail {
SEEN const CUDAHooksInterface& getCUDAHooks() {
  static const auto* hooks = new WithCudnn();
  return *hooks;
}
}  // namespace at::detail
