// SPDX-License-Identifier: Apache-2.0
// A generation loop: each step multiplies two matrices, a sampler writes four bytes, and the host must read them before it knows
// what the next step is. The step takes tens of microseconds, so what the host needs to notice its end and to queue the next one
// is idle time of the GPU. A thread that sleeps until an interrupt then queues for a CPU that loaders have filled; on a CPU of
// its own it is back at once, and when it polls it never left. The GEMM is the same library call everywhere.
#include <cuda_bf16.h>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "limits.hpp"
#include "loaders.hpp"

namespace aisp::ch03 {
namespace {

constexpr int dim = 2048, threads = dim / 8;
constexpr std::size_t matrix = std::size_t{dim} * dim;
constexpr int weight_sets = 4;
constexpr std::uint32_t not_finite = 0xFFFFFFFF;

// Step s is probed at a row and a column of its own.
__host__ __device__ constexpr std::size_t probe_of(std::size_t step) { return step % dim * dim + step * 577 % dim; }

// Stands for a sampler: looks at one row of the step's result, and names the weights of the next step. `status` is page-locked
// host memory, so that no copy follows.
__global__ __launch_bounds__(threads) void sample_kernel(const __nv_bfloat16* c, const std::uint32_t* choices, std::size_t step,
                                                         float* probes, std::uint32_t* status) {
  const uint4 eight = reinterpret_cast<const uint4*>(c + step % dim * dim)[threadIdx.x];
  bool finite = true;
  for (const std::uint32_t two : {eight.x, eight.y, eight.z, eight.w})
    finite = finite && (two & 0x7F80u) != 0x7F80u && (two & 0x7F800000u) != 0x7F800000u;
  const int all_finite = __syncthreads_and(finite);
  if (threadIdx.x != 0) return;
  probes[step] = __bfloat162float(c[probe_of(step)]);
  status[step] = all_finite ? choices[step] : not_finite;
}

// "0-3,8": the form of CPU lists in /sys.
std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::istringstream parts{text};
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream range{part};
    if (!(range >> first)) continue;
    if (!(range >> dash >> last)) last = first;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

// One of `cpus` in the GPU's part of the machine, or any where the system does not say which those are. The last one: the first
// CPUs are where most devices send their interrupts.
int cpu_near(int device, const std::vector<int>& cpus) {
  char address[32] = {};
  check(cudaDeviceGetPCIBusId(address, sizeof address, device));
  std::string folder = address;
  std::transform(folder.begin(), folder.end(), folder.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file{"/sys/bus/pci/devices/" + folder + "/local_cpulist"};
  std::string text;
  std::getline(file, text);
  const std::vector<int> local = parse_cpu_list(text);
  const auto near = std::find_if(cpus.rbegin(), cpus.rend(),
                                 [&](int cpu) { return std::find(local.begin(), local.end(), cpu) != local.end(); });
  return near != cpus.rend() ? *near : cpus.back();
}

class Gemm final : public Workload {
 public:
  explicit Gemm(Setup& setup)
      : steps_{setup.scaled(128)},
        x_{setup.input<__nv_bfloat16>(matrix, normal(0, 1), {.name = "x"})},
        // Deviation 1 / sqrt(dim): results are of the size of x.
        weights_{setup.input<__nv_bfloat16>(weight_sets * matrix, normal(0, 0.0221f), {.name = "weights"})},
        choices_{setup.input<std::uint32_t>(steps_, integers(0, weight_sets - 1), {.name = "choices"})},
        c_{setup.output<__nv_bfloat16>(matrix, {.name = "last result"})},
        probes_{setup.output<float>(steps_, {.name = "probes"})},
        statuses_{setup.output<std::uint32_t>(steps_, {.name = "statuses", .memory = Memory::pinned})},
        cpus_{usable_cpus()},
        own_cpu_{cpu_near(setup.device_ordinal(0), cpus_)},
        polled_{setup.event()},
        loaders_{static_cast<int>(cpus_.size())},
        cublas_{setup} {
    run_only_on(cpus_);  // changes nothing, but tells at once whether the system lets threads be placed
    check(cudaEventCreateWithFlags(&blocking_, cudaEventBlockingSync | cudaEventDisableTiming));
  }
  ~Gemm() override { cudaEventDestroy(blocking_); }

  Cost cost() const override {
    return {.flops = 2.0 * dim * static_cast<double>(matrix * steps_),
            .math = Math::bf16,
            .bytes = static_cast<double>(x_.bytes() + c_.bytes()),
            .dependent_kernels = 2.0 * static_cast<double>(steps_)};
  }
  double expected_output(int output, std::size_t index) const override {
    if (output == 0) return product(steps_ - 1, index);
    if (output == 1) return product(index, probe_of(index));
    return choices_.host(index);
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report_rate("steps_per_second", static_cast<double>(steps_), "steps/s");
    if (variant == "plain_gemm") return;
    const int loaders = loaders_.size() - (variant == "shared_cpus" ? 0 : 1);
    metrics.report("loaders", loaders, "threads", Metrics::Better::higher);
  }

  // Loaders start before the clock does, and the others' have stopped by then.
  void load_all_cpus(Launch&) { loaders_.work(loaders_.size(), cpus_); }
  void load_other_cpus(Launch&) {
    std::vector<int> others = cpus_;
    std::erase(others, own_cpu_);
    loaders_.work(static_cast<int>(others.size()), others);
    const AffinityGuard until_the_run;  // the move takes longer than the pinning; with nobody else there the thread stays
    run_only_on({own_cpu_});
  }
  void load_nothing(Launch&) { loaders_.settle(); }

  void shared_cpus(Launch& launch) {
    run_steps(launch, [this, &launch] { wait_blocking(launch); });
  }
  void reserved_cpu(Launch& launch) {
    const AffinityGuard afterwards;
    run_only_on({own_cpu_});
    run_steps(launch, [this, &launch] { wait_blocking(launch); });
  }
  void polling_wait(Launch& launch) {
    const AffinityGuard afterwards;
    run_only_on({own_cpu_});
    run_steps(launch, [this, &launch] { wait_polling(launch); });
  }
  // Runs as the GPU could if the host knew all choices beforehand.
  void plain_gemm(Launch& launch) {
    for (std::size_t step = 0; step < steps_; ++step) queue_step(launch, step, weights_before(step));
  }

 private:
  template <class Wait>
  void run_steps(Launch& launch, Wait&& wait) {
    const struct AtTheEnd {
      Loaders& loaders;
      ~AtTheEnd() { loaders.rest(); }
    } at_the_end{loaders_};
    std::uint32_t next = 0;
    for (std::size_t step = 0; step < steps_; ++step) {
      queue_step(launch, step, next);
      wait();
      next = statuses_[step];
      if (next >= weight_sets) throw std::runtime_error{"step " + std::to_string(step) + " gave a result that is not finite"};
    }
  }
  void queue_step(Launch& launch, std::size_t step, std::size_t weights) {
    cublas_->gemm(launch.stream, dim, dim, dim, x_, weights_ + weights * matrix, c_, CUDA_R_16BF);
    sample_kernel<<<1, threads, 0, launch.stream>>>(c_, choices_, step, probes_, statuses_);
    check(cudaGetLastError());
  }
  void wait_blocking(Launch& launch) const {
    check(cudaEventRecord(blocking_, launch.stream));
    check(cudaEventSynchronize(blocking_));
  }
  void wait_polling(Launch& launch) const {
    check(cudaEventRecord(polled_, launch.stream));
    cudaError_t status = cudaSuccess;
    while ((status = cudaEventQuery(polled_)) == cudaErrorNotReady) cudaGetLastError();  // an answer, but kept as an error
    check(status);
  }

  std::size_t weights_before(std::size_t step) const { return step == 0 ? 0 : choices_.host(step - 1); }
  double product(std::size_t step, std::size_t index) const {
    const std::size_t row = index / dim, column = index % dim, first = weights_before(step) * matrix;
    double sum = 0;
    for (std::size_t i = 0; i < dim; ++i) sum += x_.host(row * dim + i) * weights_.host(first + i * dim + column);
    return sum;
  }

  std::size_t steps_;
  Input<__nv_bfloat16> x_, weights_;
  Input<std::uint32_t> choices_;
  Output<__nv_bfloat16> c_;
  Output<float> probes_;
  Output<std::uint32_t> statuses_;
  std::vector<int> cpus_;
  int own_cpu_;
  cudaEvent_t polled_, blocking_ = nullptr;
  Loaders loaders_;
  Opened<Cublas> cublas_;
};

}  // namespace

extern constinit const Pair gemm{
    .teaches = "when loaders use every CPU, the launching thread is woken by interrupt and queues for a core; the GPU starves",
    .lesson = "polling_wait",
    .make = make<Gemm>,
    .baseline = {.name = "shared_cpus", .run = call<&Gemm::shared_cpus>, .reset = call<&Gemm::load_all_cpus>},
    .optimized = variants({{.name = "reserved_cpu", .run = call<&Gemm::reserved_cpu>, .reset = call<&Gemm::load_other_cpus>},
                           {.name = "polling_wait", .run = call<&Gemm::polling_wait>, .reset = call<&Gemm::load_other_cpus>}}),
    .controls = variants({{.name = "plain_gemm", .run = call<&Gemm::plain_gemm>, .reset = call<&Gemm::load_nothing>}}),
    .bound = Bound::latency,
    // Results and probes are rounded to bf16 once, which makes 1.6e-3; the probes are stored as fp32.
    .tolerance = within(2.7e-3),
    .needs = {.cpus = 2, .libraries = {Library::cublas}},
    .start = Start::immediate,  // every step waits for the GPU
};

}  // namespace aisp::ch03
