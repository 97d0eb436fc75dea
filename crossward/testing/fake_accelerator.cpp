// An accelerator that is none: two devices, "fake:0" and "fake:1", whose memory is that of the CPU.
//
// It is as strict as a GPU where code goes wrong: an operation on tensors of two devices is refused, and so is a random
// generator of another device, and, as on mps, a tensor of float64 unless that is allowed. It counts copies between host and device, and reads of single numbers (each of which
// would make a GPU wait). Kernels are those of the CPU, so that results can be compared to the bit; its times mean
// nothing.
//
// torch reaches it by its name for devices from elsewhere, PrivateUse1. An operation without a kernel here falls back to
// `fallback`, which checks its arguments and lets the CPU compute on the same memory.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/op_registration/adaption.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

namespace {

constexpr auto kFake = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
thread_local c10::DeviceIndex current = 0;
thread_local int nested = 0;  // inside an operation that computes on the CPU: nothing is checked or counted

std::atomic<bool> allows_float64{false};
std::atomic<long> to_device{0}, to_host{0}, between_devices{0}, reads{0}, operations{0};

void count(std::atomic<long>& counter) {
  if (nested == 0) counter++;
}

struct Nested {
  Nested() { nested++; }
  ~Nested() { nested--; }
};

// devices --------------------------------------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = kFake;
  c10::DeviceType type() const override { return kFake; }
  c10::Device getDevice() const override { return {kFake, current}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int = 0) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? std::malloc(bytes) : nullptr;
    return {data, data, &std::free, c10::Device(kFake, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(kFake, &memory)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::Device getDeviceFromPtr(void*) const override { return {kFake, current}; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(0);
    return generator;
  }
};

// memory ---------------------------------------------------------------------------------------------------------------

at::ScalarType allowed(std::optional<at::ScalarType> type) {
  auto wanted = type.value_or(c10::get_default_dtype_as_scalartype());
  TORCH_CHECK(wanted != at::kDouble || nested > 0 || allows_float64, "float64 on a device: not all devices have it");
  return wanted;
}

c10::Device chosen(std::optional<c10::Device> device) {
  return device && device->has_index() ? *device : c10::Device(kFake, current);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), allowed(type), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(chosen(device));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), allowed(type));
}

// The same memory, seen as the CPU's.
at::Tensor as_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().is_cpu()) return tensor;
  auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), options);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  if (from.device().is_cpu()) count(to_device);
  else if (to.device().is_cpu()) count(to_host);
  else if (from.device() != to.device()) count(between_devices);
  Nested inside;
  at::NoGradGuard no_gradients;
  as_cpu(to).copy_(as_cpu(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device());
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  size_t bytes = c10::multiply_integers(sizes) * self.element_size();
  auto* storage = self.storage().unsafeGetStorageImpl();
  if (storage->nbytes() < bytes) {
    auto data = memory.allocate(bytes);
    if (storage->nbytes()) std::memcpy(data.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (format && *format != at::MemoryFormat::Preserve) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar read_number(const at::Tensor& tensor) {
  count(reads);
  Nested inside;
  return as_cpu(tensor).item();
}

// operations -----------------------------------------------------------------------------------------------------------

// Operations that take indices of the CPU on any device, as CUDA's do.
const std::set<std::string> kIndexed = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put",
                                        "aten::_unsafe_index_put"};

struct Devices {
  std::set<std::string> seen;
  std::string described;

  void see(const at::Tensor& tensor, size_t argument, const std::string& name) {
    if (!tensor.defined()) return;
    bool on_host = tensor.device().is_cpu();
    bool fused = name.find("_fused_") != std::string::npos;
    if (on_host && tensor.dim() == 0 && !fused) return;  // a number from the host may join in
    if (on_host && argument >= 1 && kIndexed.count(name)) return;
    seen.insert(tensor.device().str());
    described += " " + std::to_string(argument) + ": " + tensor.device().str() + c10::str(tensor.sizes());
  }
};

void check(const c10::OperatorHandle& operation, const torch::jit::Stack& stack) {
  const std::string name = operation.operator_name().name;
  if (name == "aten::_foreach_copy_") return;
  const size_t arguments = operation.schema().arguments().size();
  const size_t first = stack.size() - arguments;
  Devices devices;
  for (size_t i = 0; i < arguments; i++) {
    const c10::IValue& value = stack[first + i];
    if (value.isTensor()) {
      devices.see(value.toTensor(), i, name);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) devices.see(tensor, i, name);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
        if (tensor) devices.see(*tensor, i, name);
    } else if (value.isGenerator()) {
      at::Generator generator = value.toGenerator();
      TORCH_CHECK(!generator.defined() || !generator.device().is_cpu(), name, " on a device: a generator of the CPU");
    }
  }
  TORCH_CHECK(devices.seen.size() <= 1, name, ": tensors of several devices,", devices.described.substr(0, 300));
}

void fallback(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  if (nested == 0) {
    check(operation, *stack);
    operations++;
  }
  Nested inside;
  at::native::cpu_fallback(operation, stack);
}

void require_one_device(const char* name, std::initializer_list<at::Tensor> tensors) {
  Devices devices;
  for (const at::Tensor& tensor : tensors) devices.see(tensor, 0, name);
  TORCH_CHECK(devices.seen.size() <= 1, name, ": tensors of several devices,", devices.described);
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  at::Tensor b = bias.value_or(at::Tensor());
  require_one_device("convolution", {x, weight, b});
  count(operations);
  Nested inside;
  at::NoGradGuard no_gradients;
  c10::DeviceGuard guard(x.device());
  std::optional<at::Tensor> b_cpu = b.defined() ? std::optional<at::Tensor>(as_cpu(b)) : std::nullopt;
  return at::convolution_symint(as_cpu(x), as_cpu(weight), b_cpu, stride, padding, dilation, transposed,
                                output_padding, groups)
      .to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> wanted) {
  require_one_device("convolution_backward", {gradient, x, weight});
  count(operations);
  Nested inside;
  at::NoGradGuard no_gradients;
  c10::DeviceGuard guard(x.device());
  std::vector<c10::SymInt> bias = {transposed ? weight.sym_size(1) * groups : weight.sym_size(0)};
  auto parts = at::convolution_backward_symint(as_cpu(gradient), as_cpu(x), as_cpu(weight),
                                               c10::OptionalArrayRef<c10::SymInt>(bias), stride, padding, dilation,
                                               transposed, output_padding, groups, wanted);
  auto moved = [&](const at::Tensor& part) { return part.defined() ? part.to(x.device()) : part; };
  return {moved(std::get<0>(parts)), moved(std::get<1>(parts)), moved(std::get<2>(parts))};
}

// The running statistics of BatchNorm change in place, which its schema does not say and the fallback would miss.
std::tuple<at::Tensor, at::Tensor, at::Tensor> batch_norm(
    const at::Tensor& x, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance, bool training, double momentum,
    double epsilon) {
  auto given = [](const std::optional<at::Tensor>& each) { return each.value_or(at::Tensor()); };
  require_one_device("batch_norm", {x, given(weight), given(bias), given(mean), given(variance)});
  count(operations);
  Nested inside;
  at::NoGradGuard no_gradients;
  c10::DeviceGuard guard(x.device());
  auto parts = at::native_batch_norm(as_cpu(x), as_cpu(given(weight)), as_cpu(given(bias)), as_cpu(given(mean)),
                                     as_cpu(given(variance)), training, momentum, epsilon);
  return {std::get<0>(parts).to(x.device()), std::get<1>(parts).to(x.device()), std::get<2>(parts).to(x.device())};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", read_number);
  library.impl("resize_", resize);
  library.impl("native_batch_norm", batch_norm);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("view", [](const at::Tensor& self, c10::SymIntArrayRef size) {
    return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
  });
  library.impl("as_strided", [](const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                                std::optional<c10::SymInt> offset) {
    std::optional<int64_t> at = offset ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt;
    return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), at);
  });
  library.impl("_reshape_alias", [](const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
  });
  library.impl("unfold", [](const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
    return at::native::unfold(self, dimension, size, step);
  });
}

// Mixed precision, as on CUDA: products in 16 bits, losses and norms in 32.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

#define IN_16_BITS(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define IN_32_BITS(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(IN_16_BITS)
  AT_FORALL_FP32(IN_32_BITS)
}

}  // namespace

extern "C" {

void fake_start() { at::RegisterPrivateUse1HooksInterface(new Hooks()); }
int fake_get_device() { return current; }
void fake_allow_float64(int allow) { allows_float64 = allow != 0; }
void fake_set_device(int index) { current = static_cast<c10::DeviceIndex>(index); }

// to_device, to_host, between_devices, reads, operations
void fake_counts(long* counts) {
  const std::atomic<long>* all[] = {&to_device, &to_host, &between_devices, &reads, &operations};
  for (int i = 0; i < 5; i++) counts[i] = *all[i];
}

void fake_reset_counts() {
  for (std::atomic<long>* each : {&to_device, &to_host, &between_devices, &reads, &operations}) *each = 0;
}
}
