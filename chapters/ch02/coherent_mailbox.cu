// SPDX-License-Identifier: Apache-2.0
// Small requests, each made from the reply to the one before. A copy in, a launch, a copy out and a wait cost many times what the
// work does. A kernel can read the request from host memory and write the reply there by itself; and a kernel that stays on the
// GPU needs no launch either: both sides tell each other by flags in memory that both can address. A flag beside the data costs a
// round trip of its own, though: it must be seen before the data is fetched, and may be set only when the data has arrived. Words
// that carry the number of their request in their upper half need neither. The floor is a round trip over PCIe per request, taken
// as 2 us.
#include <aisp/device/reduce.cuh>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cuda/atomic>
#include <stdexcept>
#include <vector>

namespace aisp::ch02 {
namespace {

constexpr unsigned words = 256;  // of a request and of a reply: 1 KiB
constexpr std::uint32_t factor = 0x9E3779B1u;
constexpr double round_trip_s = 2e-6;

using Flag = cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>;
using Tagged = cuda::atomic_ref<std::uint64_t, cuda::thread_scope_system>;  // 8 bytes are never seen half written

__host__ __device__ constexpr std::uint64_t tagged(std::uint32_t number, std::uint32_t word) {
  return std::uint64_t{number} << 32 | word;
}

// One warp: every word times a factor; the last word of the reply is the sum of all products instead.
__device__ void serve(const std::uint32_t* request, std::uint32_t* reply) {
  const unsigned lane = threadIdx.x;
  const auto* from = reinterpret_cast<const uint4*>(request);
  auto* to = reinterpret_cast<uint4*>(reply);
  uint4 low = from[lane], high = from[lane + device::warp_size];  // both under way at once
  for (std::uint32_t* word : {&low.x, &low.y, &low.z, &low.w, &high.x, &high.y, &high.z, &high.w}) *word *= factor;
  const std::uint32_t checksum = device::warp_sum(low.x + low.y + low.z + low.w + high.x + high.y + high.z + high.w);
  if (lane == device::warp_size - 1) high.w = checksum;
  to[lane] = low;
  to[lane + device::warp_size] = high;
}

__global__ void serve_kernel(const std::uint32_t* request, std::uint32_t* reply) { serve(request, reply); }

__device__ std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// How long a kernel waits for the host before it gives up: one that nobody can stop would hang the GPU.
constexpr std::uint64_t time_limit_ns = 2'000'000'000;

// False when the host has posted nothing in that time.
__device__ bool wait_for(std::uint32_t* posted, std::uint32_t number) {
  const Flag flag{*posted};
  const std::uint64_t start = nanoseconds();
  while (flag.load(cuda::memory_order_acquire) != number)
    if (nanoseconds() - start > time_limit_ns) return false;
  return true;
}

// Stays until the last request is served. Lane 0 speaks for the warp: what it acquires the others see after __syncwarp, and what
// they wrote before __syncwarp its release publishes.
__global__ void resident_kernel(const std::uint32_t* request, std::uint32_t* replies, std::uint32_t* posted,
                                std::uint32_t* answered, std::uint32_t requests) {
  for (std::uint32_t number = 1; number <= requests; ++number) {
    const bool arrived = threadIdx.x != 0 || wait_for(posted, number);
    if (!__all_sync(device::whole_warp, arrived)) return;
    __syncwarp();
    serve(request, replies + (number - 1) * words);
    __syncwarp();
    if (threadIdx.x == 0) Flag{*answered}.store(number, cuda::memory_order_release);
  }
}

// Stays as well. No flag, no fence: a word counts as soon as it bears the number of the request.
__global__ void tagged_kernel(std::uint64_t* request, std::uint64_t* reply, std::uint32_t requests) {
  constexpr int words_of_lane = words / device::warp_size;
  for (std::uint32_t number = 1; number <= requests; ++number) {
    std::uint64_t read[words_of_lane];
    const std::uint64_t start = nanoseconds();
    bool arrived = false, late = false;
    while (!arrived && !late) {
      arrived = true;
#pragma unroll
      for (int k = 0; k < words_of_lane; ++k)
        read[k] = Tagged{request[k * device::warp_size + threadIdx.x]}.load(cuda::memory_order_relaxed);
#pragma unroll
      for (int k = 0; k < words_of_lane; ++k) arrived = arrived && read[k] >> 32 == number;
      late = nanoseconds() - start > time_limit_ns;
    }
    if (!__all_sync(device::whole_warp, arrived)) return;
    std::uint32_t products[words_of_lane], sum = 0;
#pragma unroll
    for (int k = 0; k < words_of_lane; ++k) sum += products[k] = static_cast<std::uint32_t>(read[k]) * factor;
    const std::uint32_t checksum = device::warp_sum(sum);
    if (threadIdx.x == device::warp_size - 1) products[words_of_lane - 1] = checksum;
#pragma unroll
    for (int k = 0; k < words_of_lane; ++k)
      Tagged{reply[k * device::warp_size + threadIdx.x]}.store(tagged(number, products[k]), cuda::memory_order_relaxed);
  }
}

class CoherentMailbox final : public Workload {
 public:
  explicit CoherentMailbox(Setup& setup)
      : requests_{static_cast<std::uint32_t>(setup.scaled(256))},
        data_{
            setup.input<std::uint32_t>(requests_ * words, integers(0, 0xFFFFFFFF), {.name = "data", .memory = Memory::pageable})},
        replies_{setup.output<std::uint32_t>(requests_ * words, {.name = "replies", .memory = Memory::pinned})},
        request_{setup.scratch<std::uint32_t>(words, {.name = "request", .memory = Memory::pinned})},
        posted_{setup.scratch<std::uint32_t>(1, {.name = "number of the request", .memory = Memory::pinned})},
        answered_{setup.scratch<std::uint32_t>(1, {.name = "number of the reply", .memory = Memory::pinned})},
        tagged_request_{setup.scratch<std::uint64_t>(words, {.name = "tagged request", .memory = Memory::pinned})},
        tagged_reply_{setup.scratch<std::uint64_t>(words, {.name = "tagged reply", .memory = Memory::pinned})},
        device_request_{setup.scratch<std::uint32_t>(words)},
        device_reply_{setup.scratch<std::uint32_t>(words)} {}

  Cost cost() const override {
    const auto bytes = static_cast<double>(replies_.bytes());
    return {.host_to_device = bytes, .device_to_host = bytes, .seconds = requests_ * round_trip_s};
  }

  // Each request needs the reply before it, so all are computed in one go.
  void compute_reference(Launch&) override {
    reference_.resize(replies_.size());
    std::uint32_t carry = 0;
    for (std::size_t first = 0; first < reference_.size(); first += words) {
      std::uint32_t sum = 0;
      for (std::size_t i = first; i < first + words; ++i) sum += reference_[i] = (data_.host(i) ^ carry) * factor;
      carry = reference_[first + words - 1] = sum;
    }
  }
  double expected(std::size_t index) const override { return reference_[index]; }

  void copies(Launch& launch) {
    constexpr std::size_t bytes = words * sizeof(std::uint32_t);
    for (std::uint32_t number = 1; number <= requests_; ++number) {
      write_request(number);
      check(cudaMemcpyAsync(device_request_, request_, bytes, cudaMemcpyHostToDevice, launch.stream));
      serve_kernel<<<1, device::warp_size, 0, launch.stream>>>(device_request_, device_reply_);
      check(cudaGetLastError());
      check(cudaMemcpyAsync(reply(number), device_reply_, bytes, cudaMemcpyDeviceToHost, launch.stream));
      check(cudaStreamSynchronize(launch.stream));
    }
  }

  void mapped_io(Launch& launch) {
    for (std::uint32_t number = 1; number <= requests_; ++number) {
      write_request(number);
      serve_kernel<<<1, device::warp_size, 0, launch.stream>>>(request_, reply(number));
      check(cudaGetLastError());
      check(cudaStreamSynchronize(launch.stream));
    }
  }

  void resident(Launch& launch) {
    const Flag posted{*posted_.get()}, answered{*answered_.get()};
    posted.store(0, cuda::memory_order_relaxed);  // the launch publishes both
    answered.store(0, cuda::memory_order_relaxed);
    resident_kernel<<<1, device::warp_size, 0, launch.stream>>>(request_, replies_, posted_, answered_, requests_);
    check(cudaGetLastError());
    for (std::uint32_t number = 1; number <= requests_; ++number) {
      write_request(number);
      posted.store(number, cuda::memory_order_release);
      wait_until([&] { return answered.load(cuda::memory_order_acquire) == number; }, launch.stream);
    }
  }

  void tagged_words(Launch& launch) {
    std::fill_n(tagged_request_.get(), words, 0);  // no number of a run before
    std::fill_n(tagged_reply_.get(), words, 0);
    tagged_kernel<<<1, device::warp_size, 0, launch.stream>>>(tagged_request_, tagged_reply_, requests_);
    check(cudaGetLastError());
    for (std::uint32_t number = 1; number <= requests_; ++number) {
      const std::uint32_t carry = carry_of(number);
      const std::uint32_t* const from = data_.get() + (number - 1) * words;
      for (unsigned i = 0; i < words; ++i)
        Tagged{tagged_request_.get()[i]}.store(tagged(number, from[i] ^ carry), cuda::memory_order_relaxed);
      for (unsigned i = 0; i < words; ++i) {
        const Tagged word{tagged_reply_.get()[i]};
        std::uint64_t read = 0;
        wait_until([&] { return (read = word.load(cuda::memory_order_relaxed)) >> 32 == number; }, launch.stream);
        reply(number)[i] = static_cast<std::uint32_t>(read);
      }
    }
  }

 private:
  std::uint32_t* reply(std::uint32_t number) const { return replies_.get() + (number - 1) * words; }

  std::uint32_t carry_of(std::uint32_t number) const { return number == 1 ? 0 : reply(number - 1)[words - 1]; }

  void write_request(std::uint32_t number) {
    const std::uint32_t carry = carry_of(number);
    const std::uint32_t* const from = data_.get() + (number - 1) * words;
    std::uint32_t* const to = request_;
    for (unsigned i = 0; i < words; ++i) to[i] = from[i] ^ carry;
  }

  // A tool may hold the kernel back until the host has launched more, or the host until the kernel is done; then the kernel gives
  // up, and so does this.
  template <class Answered>
  static void wait_until(Answered answered, cudaStream_t stream) {
    constexpr unsigned polls_between_queries = 1u << 20;
    for (unsigned polls = 1; !answered(); ++polls) {
      if (polls % polls_between_queries != 0) continue;
      const cudaError_t status = cudaStreamQuery(stream);
      if (status == cudaErrorNotReady) continue;
      check(status);
      if (!answered())
        throw std::runtime_error{"the kernel gave up waiting for a request; kernels do not run beside the host here"};
    }
  }

  std::uint32_t requests_;
  Input<std::uint32_t> data_;
  Output<std::uint32_t> replies_;
  Scratch<std::uint32_t> request_, posted_, answered_;
  Scratch<std::uint64_t> tagged_request_, tagged_reply_;
  Scratch<std::uint32_t> device_request_, device_reply_;
  std::vector<std::uint32_t> reference_;
};

}  // namespace

extern constinit const Pair coherent_mailbox{
    .teaches = "for small requests two copies and a launch are the latency; system-scope atomics let CPU and GPU talk directly",
    .lesson = "resident_kernel",
    .make = make<CoherentMailbox>,
    .baseline = {.name = "copies", .run = call<&CoherentMailbox::copies>},
    .optimized = variants({{.name = "mapped_io", .run = call<&CoherentMailbox::mapped_io>},
                           {.name = "resident_kernel", .run = call<&CoherentMailbox::resident>},
                           {.name = "tagged_words", .run = call<&CoherentMailbox::tagged_words>}}),
    .bound = Bound::latency,
    .tolerance = exact,
    .start = Start::immediate,  // the host waits for every reply
    .reference_samples = 256 * words,
};

}  // namespace aisp::ch02
