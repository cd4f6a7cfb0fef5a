// SPDX-License-Identifier: Apache-2.0
// The nearest of 256 centroids to each point (vector quantization): the smallest |c|^2 / 2 - x c. A point lies in registers, the
// centroids in shared memory, and every FMA takes one word of them. All lanes read the same word, a broadcast, so padding of rows
// avoids no bank conflict; it only keeps the compiler from 16-byte loads. Several points a thread then share each loaded word.
// Coordinates are whole numbers, as of quantized vectors: every sum is exact, in whatever order it is added.
#include <aisp/device/reduce.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>

namespace aisp::ch07 {
namespace {

constexpr int dimensions = 16, centroids = 256;
constexpr int padded = dimensions + 1, aligned = dimensions;  // words from row to row
constexpr int threads = 256;
constexpr int most_points = 8;           // of a thread
constexpr std::size_t chunk = 64 << 10;  // points whose products the library's call has in memory at a time

template <int row>
struct Codebook {
  alignas(16) float rows[centroids][row];
  float half_norms[centroids];

  __device__ void copy(const float* from) {
    for (int i = threadIdx.x; i < centroids * dimensions; i += threads) rows[i / dimensions][i % dimensions] = from[i];
    for (int i = threadIdx.x; i < centroids; i += threads) {
      float sum = 0;
      for (int d = 0; d < dimensions; ++d) sum = fmaf(from[i * dimensions + d], from[i * dimensions + d], sum);
      half_norms[i] = 0.5f * sum;
    }
    __syncthreads();
  }
};

// Each thread has `points` of them, a block apart. The grid is as large as the GPU runs at once, so that few blocks copy the
// codebook.
template <int points, int row, bool scalar_loads>
__global__ __launch_bounds__(threads) void nearest_kernel(const float4* points_in, const float* codebook, unsigned* nearest,
                                                          unsigned count) {
  __shared__ Codebook<row> shared;
  shared.copy(codebook);
  for (unsigned first = blockIdx.x * threads * points + threadIdx.x; first < count; first += gridDim.x * threads * points) {
    float x[points][dimensions];
#pragma unroll
    for (int p = 0; p < points; ++p)
#pragma unroll
      for (int d = 0; d < dimensions; d += 4) {
        const float4 part = points_in[std::size_t{first + p * threads} * (dimensions / 4) + d / 4];
        x[p][d] = part.x, x[p][d + 1] = part.y, x[p][d + 2] = part.z, x[p][d + 3] = part.w;
      }
    float least[points];
    unsigned index[points] = {};
#pragma unroll
    for (float& each : least) each = INFINITY;
#pragma unroll 2
    for (int c = 0; c < centroids; ++c) {
      float distance[points];
#pragma unroll
      for (float& each : distance) each = shared.half_norms[c];
#pragma unroll
      for (int d = 0; d < dimensions; ++d) {
        float y;
        if constexpr (scalar_loads) y = *static_cast<const volatile float*>(&shared.rows[c][d]);
        else y = shared.rows[c][d];
#pragma unroll
        for (int p = 0; p < points; ++p) distance[p] = fmaf(-x[p][d], y, distance[p]);
      }
#pragma unroll
      for (int p = 0; p < points; ++p)
        if (distance[p] < least[p]) least[p] = distance[p], index[p] = static_cast<unsigned>(c);
    }
#pragma unroll
    for (int p = 0; p < points; ++p) nearest[first + p * threads] = index[p];
  }
}

// As many words of the codebook as the kernel with one point a thread reads, by one width of load and nothing else.
template <int words>
__global__ __launch_bounds__(threads) void broadcasts_kernel(const float* codebook, unsigned count) {
  __shared__ Codebook<aligned> shared;
  shared.copy(codebook);
  const unsigned from = device::shared_address(shared.rows);
  for (unsigned first = blockIdx.x * threads; first < count; first += gridDim.x * threads) {
#pragma unroll 32
    for (int i = 0; i < centroids * dimensions; i += words) {
      [[maybe_unused]] unsigned a, b, c, d;
      const unsigned address = from + i * sizeof(float);
      if constexpr (words == 1) asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(a) : "r"(address));
      else if constexpr (words == 2) asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address));
      else asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(address));
    }
  }
}

__global__ __launch_bounds__(centroids) void half_norms_kernel(const float* codebook, float* half_norms) {
  float sum = 0;
  for (int d = 0; d < dimensions; ++d)
    sum = fmaf(codebook[threadIdx.x * dimensions + d], codebook[threadIdx.x * dimensions + d], sum);
  half_norms[threadIdx.x] = 0.5f * sum;
}

// Behind the library's product: a warp for each point finds the smallest of its row, of equal ones the first.
__global__ __launch_bounds__(threads) void smallest_kernel(const float4* products, const float4* half_norms, unsigned* nearest) {
  const unsigned point = blockIdx.x * (threads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  float least = INFINITY;
  unsigned index = 0;
#pragma unroll
  for (unsigned quad = lane; quad < centroids / 4; quad += 32) {
    const float4 p = products[std::size_t{point} * (centroids / 4) + quad], n = half_norms[quad];
    const float distance[4] = {n.x - p.x, n.y - p.y, n.z - p.z, n.w - p.w};
#pragma unroll
    for (unsigned k = 0; k < 4; ++k)
      if (distance[k] < least) least = distance[k], index = quad * 4 + k;
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(device::whole_warp, least, offset);
    const unsigned others_index = __shfl_xor_sync(device::whole_warp, index, offset);
    if (other < least || (other == least && others_index < index)) least = other, index = others_index;
  }
  if (lane == 0) nearest[point] = index;
}

class SharedVectorLoads final : public Workload {
 public:
  explicit SharedVectorLoads(Setup& setup)
      : count_{setup.scaled(4 << 20, chunk)},
        points_per_thread_{setup.size("points")},
        points_{setup.input<float>(count_ * dimensions, integers(-127, 127), {.name = "points"})},
        centroids_{setup.input<float>(std::size_t{centroids} * dimensions, integers(-127, 127), {.name = "centroids"})},
        nearest_{setup.output<unsigned>(count_, {.name = "nearest"})},
        products_{setup.scratch<float>(chunk * centroids, {.name = "products"})},
        half_norms_{setup.scratch<float>(centroids, {.name = "half norms"})},
        cublas_{setup} {}

  Cost cost() const override {
    return {.flops = 2.0 * static_cast<double>(points_.size()) * centroids,
            .bytes = static_cast<double>(points_.bytes() + centroids_.bytes() + nearest_.bytes())};
  }
  // The loops of broadcasts compute nothing and take as long as any kernel at the least.
  Cost variant_cost(std::string_view variant) const override {
    return variant.starts_with("broadcasts") ? Cost{.dependent_kernels = 1} : cost();
  }
  double expected(std::size_t i) const override {
    double least = INFINITY;
    int index = 0;
    for (int c = 0; c < centroids; ++c) {
      double distance = 0;
      for (std::size_t d = 0; d < dimensions; ++d) {
        const double y = centroids_.host(static_cast<std::size_t>(c) * dimensions + d);
        distance += y * (0.5 * y - points_.host(i * dimensions + d));
      }
      if (distance < least) least = distance, index = c;
    }
    return index;
  }

  template <int points, int row, bool scalar_loads = false>
  void nearest(Launch& launch) {
    const auto kernel = nearest_kernel<points, row, scalar_loads>;
    launch(kernel, {resident(kernel, points), threads}, reinterpret_cast<const float4*>(points_.get()), centroids_, nearest_,
           count_);
  }
  void chosen_points(Launch& launch) {
    switch (points_per_thread_) {
      case 1: return nearest<1, aligned>(launch);
      case 2: return nearest<2, aligned>(launch);
      case 4: return nearest<4, aligned>(launch);
      case 8: return nearest<8, aligned>(launch);
      default: throw Unsupported{"threads are compiled for 1, 2, 4 and 8 points"};
    }
  }
  template <int words>
  void broadcasts(Launch& launch) {
    launch(broadcasts_kernel<words>, {resident(broadcasts_kernel<words>, 1), threads}, centroids_, count_);
  }
  void cublas(Launch& launch) {
    const auto sgemm = Cublas::function<decltype(cublasSgemm_v2)>("cublasSgemm_v2");
    const float one = 1, zero = 0;
    cublas_->use(launch.stream);
    launch(half_norms_kernel, {1, centroids}, centroids_, half_norms_);
    for (std::size_t first = 0; first < count_; first += chunk) {
      check(sgemm(cublas_->handle(), CUBLAS_OP_T, CUBLAS_OP_N, centroids, chunk, dimensions, &one, centroids_, dimensions,
                  points_ + first * dimensions, dimensions, &zero, products_, centroids));
      launch(smallest_kernel, {chunk / (threads / 32), threads}, reinterpret_cast<const float4*>(products_.get()),
             reinterpret_cast<const float4*>(half_norms_.get()), nearest_ + first);
    }
  }

 private:
  // As many blocks as run at once, or as there is work for.
  template <class Kernel>
  unsigned resident(Kernel kernel, int points) const {
    int per_sm = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, 0));
    return std::min(multiprocessors() * static_cast<unsigned>(per_sm), static_cast<unsigned>(count_) / (threads * points));
  }

  std::size_t count_, points_per_thread_;  // points_per_thread: of chosen_points
  Input<float> points_, centroids_;
  Output<unsigned> nearest_;
  Scratch<float> products_, half_norms_;
  Opened<Cublas> cublas_;
};

}  // namespace

extern constinit const Pair shared_vector_loads{
    .teaches =
        "the load unit delivers two words of shared memory a cycle to a kernel of broadcasts: wide loads save instructions, and "
        "only several points a thread share what is loaded",
    .lesson = "four_points",
    .make = make<SharedVectorLoads>,
    .baseline = {.name = "padded_rows", .run = call<&SharedVectorLoads::nearest<1, padded>>},
    .optimized = variants({{.name = "aligned_rows", .run = call<&SharedVectorLoads::nearest<1, aligned>>},
                           {.name = "two_points", .run = call<&SharedVectorLoads::nearest<2, aligned>>},
                           {.name = "four_points", .run = call<&SharedVectorLoads::nearest<4, aligned>>}}),
    .controls =
        variants({{.name = "scalar_loads", .run = call<&SharedVectorLoads::nearest<1, aligned, true>>},
                  {.name = "chosen_points", .run = call<&SharedVectorLoads::chosen_points>},
                  {.name = "broadcasts_4_bytes", .run = call<&SharedVectorLoads::broadcasts<1>>, .outputs = no_outputs},
                  {.name = "broadcasts_8_bytes", .run = call<&SharedVectorLoads::broadcasts<2>>, .outputs = no_outputs},
                  {.name = "broadcasts_16_bytes", .run = call<&SharedVectorLoads::broadcasts<4>>, .outputs = no_outputs}}),
    .libraries =
        variants({{.name = "cublas", .run = call<&SharedVectorLoads::cublas>, .needs = {.libraries = {Library::cublas}}}}),
    .bound = Bound::compute,
    .tolerance = exact,
    .sizes = sizes({{.name = "points", .full = most_points, .most = most_points, .scales = false}}),
    .sweep = cases({{"points_1", "points=1"}, {"points_2", "points=2"}, {"points_4", "points=4"}, {"points_8", "points=8"}}),
    .edges = cases({{"points_1", "points=1"}, {"points_3", "points=3"}}),
};

}  // namespace aisp::ch07
