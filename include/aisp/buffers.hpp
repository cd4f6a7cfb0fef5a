// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <aisp/generators.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

// Types from CUDA's headers, which a pair includes if it uses them.
// NOLINTBEGIN(clang-diagnostic-reserved-identifier)
struct __half;
struct __nv_bfloat16;
struct __nv_fp8_e4m3;
struct __nv_fp8_e5m2;
// NOLINTEND(clang-diagnostic-reserved-identifier)

namespace aisp {

enum class Memory : std::uint8_t {
  automatic,  // device memory for GPU pairs, ordinary heap memory for host pairs
  device,
  pinned,    // page-locked host memory; every GPU can address it
  mapped,    // page-locked, mapped and write-combined towards the GPU
  pageable,  // ordinary host memory; only the CPU may touch it
  managed,   // migrates between CPU and GPU
};

enum class Role : std::uint8_t { input, output, inout, scratch };

enum class ElementType : std::uint8_t {
  f64,
  f32,
  f16,
  bf16,
  e4m3,
  e5m2,
  i8,
  u8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  // Bytes of codes, whose value is the byte: codes are decoded only in messages and in steps (within_steps). If a byte holds two,
  // the low nibble comes first, and the byte is as many steps off as the farther one.
  e2m1x2,  // FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign
  s4x2,    // two's complement
  e3m2,    // FP6 in the low six bits
  e8m0,    // 2^(byte - 127): scales of blocks
  record,  // anything else, for inputs only: it has no value to compare with a reference
};
constexpr bool holds_codes(ElementType type) { return type >= ElementType::e2m1x2 && type <= ElementType::e8m0; }

template <class T>
constexpr ElementType element_type() {
  if constexpr (std::is_same_v<T, double>) return ElementType::f64;
  else if constexpr (std::is_same_v<T, float>) return ElementType::f32;
  else if constexpr (std::is_same_v<T, __half>) return ElementType::f16;
  else if constexpr (std::is_same_v<T, __nv_bfloat16>) return ElementType::bf16;
  else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) return ElementType::e4m3;
  else if constexpr (std::is_same_v<T, __nv_fp8_e5m2>) return ElementType::e5m2;
  else if constexpr (std::is_integral_v<T>) {
    constexpr ElementType by_size[2][4] = {{ElementType::u8, ElementType::u16, ElementType::u32, ElementType::u64},
                                           {ElementType::i8, ElementType::i16, ElementType::i32, ElementType::i64}};
    return by_size[std::is_signed_v<T>][sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3];
  } else return ElementType::record;
}

struct BufferOptions {
  const char* name = "";  // shown in messages; "input 2" and the like when empty
  Memory memory = Memory::automatic;
  int device = 0;                           // index among the GPUs given to the pair
  std::size_t alignment = 256;              // bytes; host memory only (device allocations are aligned to 256 and more)
  bool unordered = false;                   // outputs: elements may come in any order; sorted before comparison
  bool huge_pages = false;                  // pageable memory: ask for 2 MiB pages
  ElementType codes = ElementType::record;  // for one-byte elements that hold codes: e2m1x2, s4x2, e3m2 or e8m0
  Axis groups{};          // outputs whose limits hold for each place of this axis separately (heads, rows, experts)
  bool constant = false;  // inputs that stay the same from run to run (weights, tables); `prepare` may depend on them. All others
                          // get new contents between prepare and the runs that are checked
};

// The part of a registered allocation that its handle reads; the harness keeps the rest (src/pair/memory/buffer.hpp).
struct BufferView {
  void* data = nullptr;
  std::size_t count = 0;
  std::size_t element_bytes = 1;
  Pattern pattern;                       // contents of inputs and inouts that are not filled on the host
  std::uint64_t seed = 0;                // seed of the present contents
  const std::byte* host_copy = nullptr;  // contents that were filled on the host
  bool hidden = false;                   // the handle does not tell the contents now: seed and host_copy are empty

  std::size_t bytes() const { return count * element_bytes; }
};

namespace detail {

[[noreturn]] void throw_contents_are_hidden();

template <class T>
class Handle {
 public:
  std::size_t size() const { return buffer_->count; }
  std::size_t bytes() const { return buffer_->bytes(); }

 protected:
  explicit Handle(const BufferView& buffer) : buffer_{&buffer} {}
  T* data() const { return static_cast<T*>(buffer_->data); }

  // Returns the contents that the buffer was filled with: float64 for floating-point elements, T itself for integers and records.
  auto filled(std::size_t index) const {
    if (buffer_->hidden) throw_contents_are_hidden();
    T value;
    if (buffer_->host_copy != nullptr) value = reinterpret_cast<const T*>(buffer_->host_copy)[index];
    else if constexpr (element_type<T>() != ElementType::record)
      value = pattern_value<T>(buffer_->pattern, buffer_->seed, buffer_->pattern.start + index);
    if constexpr (std::is_integral_v<T> || element_type<T>() == ElementType::record) return value;
    else if constexpr (std::is_same_v<T, double>) return value;
    else return static_cast<double>(static_cast<float>(value));
  }

  const BufferView* buffer_;
};

}  // namespace detail

// Handles convert to a pointer that is valid where the buffer lives (device pointer for device memory; pinned, mapped and managed
// memory have one address for CPU and GPU).

template <class T>
class Input : public detail::Handle<T> {
 public:
  explicit Input(const BufferView& buffer) : detail::Handle<T>{buffer} {}
  operator const T*() const { return this->data(); }
  const T* get() const { return this->data(); }
  // Returns the value that the GPU sees, computed on the CPU. Throws while a variant runs or resets and while it reports metrics:
  // a run has to read what it computes from. Constant inputs may be asked for at any time, others also by a control.
  auto host(std::size_t index) const { return this->filled(index); }
};

template <class T>
class Output : public detail::Handle<T> {
 public:
  explicit Output(const BufferView& buffer) : detail::Handle<T>{buffer} {}
  operator T*() const { return this->data(); }
  T* get() const { return this->data(); }
};

// Changed in place by the measured work: filled like an input before every execution, outside the timed window, and compared like
// an output after it.
template <class T>
class InOut : public detail::Handle<T> {
 public:
  explicit InOut(const BufferView& buffer) : detail::Handle<T>{buffer} {}
  operator T*() const { return this->data(); }
  T* get() const { return this->data(); }
  auto initial(std::size_t index) const { return this->filled(index); }  // the value before an execution; throws as host() does
};

// Workspace: poisoned after every refill, before the variants' prepare runs; never compared.
template <class T>
class Scratch : public detail::Handle<T> {
 public:
  explicit Scratch(const BufferView& buffer) : detail::Handle<T>{buffer} {}
  operator T*() const { return this->data(); }
  T* get() const { return this->data(); }
};

}  // namespace aisp
