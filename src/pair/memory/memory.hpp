// SPDX-License-Identifier: Apache-2.0
// Operations on registered buffers in any memory: fill, poison, digest, compare. Kernels on the buffer's own GPU process device
// buffers, the CPU host buffers, with the same results.
#pragma once
#include <cuda_runtime_api.h>
#include <aisp/buffers.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace aisp {

// One registered allocation, which the harness fills, poisons, hashes, compares and counts. Authors hold typed handles to its
// view.
struct Buffer : BufferView {
  std::string name;
  Role role = Role::scratch;
  ElementType type = ElementType::record;
  Memory memory = Memory::device;
  int device = 0;
  bool unordered = false;
  bool huge_pages = false;
  Axis groups{};
  bool constant = false;
  std::uint64_t drawn = 0;  // seed of the present contents; the view's differs while they are hidden
  std::size_t alignment = 256;
  Function<void(void* host, std::uint64_t seed)> fill;  // inputs and inouts that are filled on the host
  std::vector<std::byte> filled;                        // their contents, which host_copy points to
  std::vector<std::byte> others;                        // contents that take their place where they may not be known
};

}  // namespace aisp

namespace aisp::pair {

// The memory of a Buffer, with a red zone before and after it, freed by the destructor. `gpu` is a CUDA ordinal (-1: host pair).
class Allocation {
 public:
  Allocation(Buffer& buffer, int gpu, bool red_zones);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  // Paint the red zones, and describe damage since then; empty if there is none.
  void paint();
  std::string damage() const;
  std::size_t bytes() const { return total_bytes_; }
  int gpu() const { return gpu_; }  // where its kernels run: -1 for host memory

 private:
  Buffer& buffer_;
  int gpu_;
  std::size_t front_bytes_ = 0;
  std::size_t back_bytes_ = 0;
  std::size_t total_bytes_ = 0;
  void* base_ = nullptr;
};

// Bytes before and after every allocation that must not be written.
inline constexpr std::size_t red_zone_bytes = 256;

// NaN in every floating-point type.
inline constexpr int default_poison = 0xFF;

inline bool on_device(const Buffer& buffer) { return buffer.memory == Memory::device; }

// The place and the type of a span of elements; `gpu` is the CUDA ordinal, -1 for host memory.
struct Elements {
  const void* data = nullptr;
  ElementType type = ElementType::record;
  std::size_t element_bytes = 1;
  std::size_t count = 0;
  int gpu = -1;
  std::size_t bytes() const { return count * element_bytes; }
};

// The key of a digest, without which no output can be made to have it. With the default key all digests are comparable.
struct DigestKey {
  std::uint64_t mask = 0;
  std::uint64_t factor = 1;  // odd
};

// All calls return when the work is done.
void fill_pattern(void* data, ElementType type, std::size_t count, const Pattern& pattern, std::uint64_t seed, int gpu);
void set_bytes(void* data, int value, std::size_t bytes, int gpu);
// Returns an order-dependent 64-bit digest: the same bytes give the same digest on CPU and GPU.
std::uint64_t digest(const void* data, std::size_t bytes, int gpu, const DigestKey& key = {});
// Queues the same for device memory on `stream`: adds to *sum, which lies on the GPU.
void queue_digest(const void* data, std::size_t bytes, int gpu, std::uint64_t* sum, cudaStream_t stream,
                  const DigestKey& key = {});
void queue_clear(std::uint64_t* sums, std::size_t count, int gpu, cudaStream_t stream);
// Queues a copy from the GPU to page-locked memory, by a kernel like all work queued here, so that a profiler's records tell it
// from a pair's own work.
void queue_publish(const std::uint64_t* sums, std::uint64_t* to, std::size_t count, int gpu, cudaStream_t stream);
void queue_bytes(void* data, int value, std::size_t bytes, int gpu, cudaStream_t stream);
// Queues a copy within the memory of one GPU.
void queue_move(const void* from, void* to, std::size_t bytes, int gpu, cudaStream_t stream);
std::size_t count_byte_mismatches(const void* data, int value, std::size_t bytes, int gpu);

struct Norms {
  double difference_squared = 0;
  double reference_squared = 0;
  double largest_element_error = 0;  // |x - r| / (|r| + rms(r)); infinity if x is not finite; 0 if only bits count
  std::size_t mismatches = 0;        // elements whose bits differ (same type), or whose values differ
  std::size_t not_finite = 0;        // elements of x
  double most_steps = 0;             // values of x's type from an element to its reference
  std::size_t moved = 0;             // elements that are any steps away
  std::size_t groups = 1;
  std::size_t group = 0;  // the group with the largest relative L2
  double group_l2 = 0;    // its relative L2; of everything if there are no groups
  double relative_l2() const;
  Norms operator+(const Norms& other) const;  // merges norms of other elements of the same group
};
struct Comparison {
  Axis groups{};       // element errors are relative to the root mean square of the element's own group
  bool steps = false;  // count steps
  bool bits = false;   // compare only bits, and leave out errors of elements, which take a pass of their own
};
// Compares x with reference, element by element; both on the same side (device or host), of any two numeric types or two equal
// ones.
Norms compare(const Elements& x, const Elements& reference, const Comparison& how = {});

// With fewer elements a group's norm means little.
inline constexpr std::size_t least_of_a_group = 32;
// The groups of an output with fewer elements in all, as edges have them, count as one: the norm of some would be near zero by
// chance.
inline constexpr std::size_t few_elements = 1024;

// Returns how many of `count` elements along `groups` are in a group, and where its k-th is.
AISP_HOST_DEVICE inline std::size_t group_size(const Axis& groups, std::size_t count, std::size_t group) {
  if (groups.count <= 1) return count;
  const std::size_t turn = groups.stride * groups.count, rest = count % turn, before = group * groups.stride;
  const std::size_t begun = rest > before ? rest - before : 0;
  return count / turn * groups.stride + (begun < groups.stride ? begun : groups.stride);
}
AISP_HOST_DEVICE inline std::size_t group_element(const Axis& groups, std::size_t group, std::size_t k) {
  return groups.count <= 1 ? k : (k / groups.stride * groups.count + group) * groups.stride + k % groups.stride;
}
// Combines the groups' norms: the first of `of_groups` is that of group 0.
Norms whole_of(const std::vector<Norms>& of_groups);
// Returns the number of values of `type` from `value` to the rounded reference; both finite.
double steps_between(double value, double reference, ElementType type);
std::size_t count_not_finite(const Elements& x);
// Counts elements that hold poison byte `first_poison` in `first` and `second_poison` in `second`: they were written in neither
// run.
std::size_t count_unwritten(const Elements& first, int first_poison, const Elements& second, int second_poison);
// Sorts ascending; records by their bytes.
void sort_elements(void* data, ElementType type, std::size_t element_bytes, std::size_t count, int gpu);

// Copies the elements at `indices`, one after the other, to host memory.
void gather(const Elements& from, const std::vector<std::size_t>& indices, void* to);

// Returns element `index` as float64 (integers beyond 2^53 lose their last bits).
double element_value(const void* host_data, ElementType type, std::size_t index);
// Returns an element's text for messages: "0.25"; for bytes of codes with their decoded values: "0x3a (-1, 1.5)".
std::string element_text(double value, ElementType type);

// The memory that cudaMallocAsync has allocated, by the pools' own account.
struct PoolUse {
  std::uint64_t used_bytes = 0;      // allocated now
  std::uint64_t reserved_bytes = 0;  // reserved from the driver now
  std::uint64_t most_used_bytes = 0;
  std::uint64_t most_reserved_bytes = 0;
};

// Returns the use of the pools of cudaMallocAsync on these GPUs; zeros where a GPU has none. Only the driver's account sees a
// pool that a pair makes for itself.
PoolUse pool_use(const std::vector<int>& gpus);
// Overwrites the pools' unused memory, so that no later allocation finds earlier contents. Waits for the GPUs.
void scrub_pools(const std::vector<int>& gpus);
// Resets the high-water marks to the present use.
void reset_pool_marks(const std::vector<int>& gpus);

// The GPU side of the above, on the current device, for memory.cpp alone.
namespace gpu {

void fill_pattern(void* data, ElementType type, std::size_t count, const Pattern& pattern, std::uint64_t seed);
std::uint64_t digest(const void* data, std::size_t bytes, const DigestKey& key);
std::size_t count_byte_mismatches(const void* data, int value, std::size_t bytes);
void queue_digest(const void* data, std::size_t bytes, std::uint64_t* sum, cudaStream_t stream, const DigestKey& key);
void queue_copy(const std::uint64_t* from, std::uint64_t* to, std::size_t count, cudaStream_t stream);  // null: zeros
void queue_bytes(void* data, int value, std::size_t bytes, cudaStream_t stream);
void queue_move(const void* from, void* to, std::size_t bytes, cudaStream_t stream);
Norms compare(const Elements& x, const Elements& reference, const Comparison& how);
std::size_t count_not_finite(const Elements& x);
std::size_t count_unwritten(const Elements& first, int first_poison, const Elements& second, int second_poison);
void gather(const Elements& from, const std::vector<std::size_t>& indices, void* to);
bool sort_elements(void* data, ElementType type, std::size_t count);  // false: this type is sorted on the host

}  // namespace gpu

}  // namespace aisp::pair
