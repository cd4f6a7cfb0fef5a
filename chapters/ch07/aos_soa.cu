// SPDX-License-Identifier: Apache-2.0
// The kinetic energy of particles needs velocity and mass, four of the sixteen fields of a particle's struct. L2 moves whole
// sectors of 32 bytes and DRAM larger pieces, so an array of structs is read completely for a quarter of it. Where every field
// has an array of its own, only the arrays that are used are read, and 32 neighbours fill a line.
#include <aisp/pair.hpp>

#include <stdexcept>

namespace aisp::ch07 {
namespace {

constexpr int threads = 256;
constexpr int all_fields = 16;  // position (3), velocity (3), force (3), mass, charge, and what identifies a particle
constexpr int group = 32;       // particles of a group of the array of structs of arrays

// Returns the place of the k-th field, in the order of use, of particle i of n. Mass and velocity come first; then fields that
// other kernels use.
struct Structs {
  static __host__ __device__ std::size_t at(std::size_t i, int k, std::size_t) {
    constexpr int field[all_fields] = {9, 3, 4, 5, 0, 1, 2, 6, 7, 8, 10, 11, 12, 13, 14, 15};
    return i * all_fields + field[k];
  }
};
// The hot fields lie side by side, in the first sector.
struct HotSector {
  static __device__ std::size_t at(std::size_t i, int k, std::size_t) { return i * all_fields + k; }
};
struct Arrays {
  static __device__ std::size_t at(std::size_t i, int k, std::size_t n) { return k * n + i; }
};
struct GroupedArrays {
  static __device__ std::size_t at(std::size_t i, int k, std::size_t) {
    return i / group * (group * all_fields) + k * group + i % group;
  }
};

// Half the mass times the squares of the other fields in use: of three, the velocity, that is the kinetic energy. The sweep uses
// fewer or more fields, as another kernel would.
template <int fields>
__device__ float energy(const float (&value)[fields]) {
  float squares = fields == 1 ? 1.0f : 0.0f;
#pragma unroll
  for (int k = 1; k < fields; ++k) squares = fmaf(value[k], value[k], squares);
  return 0.5f * value[0] * squares;
}

template <class Layout, int fields>
__global__ __launch_bounds__(threads) void energy_kernel(const float* particles, float* energies, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  float value[fields];
#pragma unroll
  for (int k = 0; k < fields; ++k) value[k] = particles[Layout::at(i, k, count)];
  energies[i] = energy(value);
}

// Four particles a thread, 16 bytes of each array at a time.
template <int fields>
__global__ __launch_bounds__(threads) void energy_vec16_kernel(const float* particles, float4* energies, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  float4 loaded[fields];
#pragma unroll
  for (int k = 0; k < fields; ++k) loaded[k] = reinterpret_cast<const float4*>(particles + k * count)[i];
  float value[4][fields];
#pragma unroll
  for (int k = 0; k < fields; ++k)
    value[0][k] = loaded[k].x, value[1][k] = loaded[k].y, value[2][k] = loaded[k].z, value[3][k] = loaded[k].w;
  energies[i] = make_float4(energy(value[0]), energy(value[1]), energy(value[2]), energy(value[3]));
}

template <class Layout>
__global__ __launch_bounds__(threads) void convert_kernel(const float* structs, float* to, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  float value[all_fields];
#pragma unroll
  for (int k = 0; k < all_fields; ++k) value[k] = structs[Structs::at(i, k, count)];
#pragma unroll
  for (int k = 0; k < all_fields; ++k) to[Layout::at(i, k, count)] = value[k];
}

class AosSoa final : public Workload {
 public:
  explicit AosSoa(Setup& setup)
      : count_{setup.scaled(32 << 20, std::size_t{threads} * 4)},
        fields_{static_cast<int>(setup.size("fields"))},
        structs_{setup.input<float>(count_ * all_fields, uniform(0.5f, 1.5f), {.name = "structs", .constant = true})},
        reordered_{setup.scratch<float>(count_ * all_fields, {.name = "reordered structs"})},
        arrays_{setup.scratch<float>(count_ * all_fields, {.name = "arrays"})},
        groups_{setup.scratch<float>(count_ * all_fields, {.name = "groups of arrays"})},
        energies_{setup.output<float>(count_, {.name = "energies"})} {}

  // The fields that are used; a square each but the mass, their sum, and two products.
  Cost cost() const override {
    const auto particles = static_cast<double>(count_);
    return {.flops = particles * (2 * fields_ - 1), .bytes = particles * sizeof(float) * (fields_ + 1)};
  }
  double expected(std::size_t i) const override {
    const auto value = [&](int k) { return structs_.host(Structs::at(i, k, count_)); };
    double squares = fields_ == 1 ? 1 : 0;
    for (int k = 1; k < fields_; ++k) squares += value(k) * value(k);
    return 0.5 * value(0) * squares;
  }

  void structs(Launch& launch) { run<Structs>(launch, structs_); }
  void hot_sector(Launch& launch) { run<HotSector>(launch, reordered_); }
  void soa(Launch& launch) { run<Arrays>(launch, arrays_); }
  void aosoa(Launch& launch) { run<GroupedArrays>(launch, groups_); }
  void soa_vec16(Launch& launch) {
    with_fields([&]<int fields>() {
      launch(energy_vec16_kernel<fields>, {blocks(4), threads}, arrays_, reinterpret_cast<float4*>(energies_.get()), count_);
    });
  }
  void reorder(Launch& launch) { convert<HotSector>(launch, reordered_); }
  void to_arrays(Launch& launch) { convert<Arrays>(launch, arrays_); }
  void to_groups(Launch& launch) { convert<GroupedArrays>(launch, groups_); }

 private:
  template <class Layout>
  void run(Launch& launch, const float* particles) {
    with_fields([&]<int fields>() { launch(energy_kernel<Layout, fields>, {blocks(1), threads}, particles, energies_, count_); });
  }
  template <class Layout>
  void convert(Launch& launch, float* to) {
    launch(convert_kernel<Layout>, {blocks(1), threads}, structs_, to, count_);
  }
  template <class Run>
  void with_fields(Run run) {
    switch (fields_) {
      case 1: return run.template operator()<1>();
      case 2: return run.template operator()<2>();
      case 4: return run.template operator()<4>();
      case 8: return run.template operator()<8>();
      case 16: return run.template operator()<16>();
      default: throw Unsupported{"kernels are compiled for 1, 2, 4, 8 and 16 fields"};
    }
  }
  unsigned blocks(std::size_t particles_of_a_thread) const {
    return static_cast<unsigned>(count_ / (threads * particles_of_a_thread));
  }

  std::size_t count_;
  int fields_;
  Input<float> structs_;
  Scratch<float> reordered_, arrays_, groups_;
  Output<float> energies_;
};

}  // namespace

extern constinit const Pair aos_soa{
    .teaches =
        "an array of structs is read completely, however few of its fields are used; with an array for each field, only those "
        "are read",
    .lesson = "soa",
    .make = make<AosSoa>,
    .baseline = {.name = "structs", .run = call<&AosSoa::structs>},
    .optimized = variants(
        {{.name = "hot_sector", .run = call<&AosSoa::hot_sector>, .prepare = call<&AosSoa::reorder>},
         {.name = "soa", .run = call<&AosSoa::soa>, .prepare = call<&AosSoa::to_arrays>},
         {.name = "aosoa", .run = call<&AosSoa::aosoa>, .prepare = call<&AosSoa::to_groups>},
         {.name = "soa_vec16", .run = call<&AosSoa::soa_vec16>, .prepare = call<&AosSoa::to_arrays>, .gains_over = "soa"}}),
    .bound = Bound::memory,
    .tolerance = reduction_of(all_fields),
    .sizes = sizes({{.name = "fields", .full = 4, .most = all_fields, .scales = false}}),
    .sweep = cases({{"fields_1", "fields=1"},
                    {"fields_2", "fields=2"},
                    {"fields_4", "fields=4"},
                    {"fields_8", "fields=8"},
                    {"fields_16", "fields=16"}}),
    .edges = cases({{"fields_1", "fields=1"}}),
};

}  // namespace aisp::ch07
