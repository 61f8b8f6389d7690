// Gives the CPU build of PyTorch what only its CUDA build registers: a device, cuDNN's LSTM, and which attention runs.
// Loaded after PyTorch.
#include <ATen/native/RNN.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <optional>

namespace {

using c10::Device;
using c10::DeviceType;
using c10::Stream;

const Device kOnly(DeviceType::CUDA, 0);

class OneDevice final : public c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
 public:
  Device getDevice() const override { return kOnly; }
  Device exchangeDevice(Device) const override { return kOnly; }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, kOnly); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, kOnly); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, kOnly); }
};

int64_t attention_kernel = 0;

int64_t choose_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                         double, bool, std::optional<double>, bool) {
  return attention_kernel;
}

void lstm(at::Tensor& output, at::Tensor& hy, at::Tensor& cy, const at::Tensor& input, at::TensorList hx,
          at::TensorList weights, bool biases, int64_t layers, double dropout, bool train, bool both,
          bool batch_first) {
  std::optional<at::Tensor> state;
  if (train && dropout > 0) {
    state = at::empty({0}, input.options().dtype(at::kByte));
  }
  auto all = at::_cudnn_rnn(input, weights, biases ? 4 : 2, weights[0].detach(), hx[0], hx[1], 2, hx[0].size(2), 0, layers, batch_first,
                            dropout, train, both, {}, state);
  output = std::get<0>(all), hy = std::get<1>(all), cy = std::get<2>(all);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void oracle_kernels(int64_t attention) {
  static const auto* guard = new OneDevice();
  c10::impl::registerDeviceGuard(DeviceType::CUDA, guard);
  attention_kernel = attention;
  at::native::lstm_cudnn_stub.set_cuda_dispatch_ptr(&lstm);
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose_attention);
}
