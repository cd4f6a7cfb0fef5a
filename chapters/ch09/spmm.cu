// SPDX-License-Identifier: Apache-2.0
// A layer of a graph network: each node's new features are the weighted sum of its neighbours'. As gather, scale and scatter-add
// over a list of edges, every edge has a row of its own in memory, and its sum goes through atomics. That is a product of a
// sparse with a dense matrix: with the edges in compressed rows, a tile of lanes walks over a node's edges, sums stay in
// registers, and what is left is the gather through L2. A few nodes have very many edges: their rows are cut.
#include <aisp/libraries/cusparse.hpp>
#include <aisp/pair.hpp>
#include <aisp/ragged.hpp>

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

namespace aisp::ch09 {
namespace {

constexpr int threads = 256;
constexpr int longest = 256;  // edges of a piece of a row

// A row of features in chunks of 16 bytes, dealt out to a tile of neighbouring lanes.
template <int features>
struct Row {
  static constexpr int chunks = features / 4, lanes = chunks < 32 ? chunks : 32, vectors = chunks / lanes;
  static constexpr int tiles = threads / lanes;  // of a block
};

__device__ float4 scaled(float w, float4 x) { return make_float4(w * x.x, w * x.y, w * x.z, w * x.w); }
__device__ void add_scaled(float4& sum, float w, float4 x) {
  sum.x = fmaf(w, x.x, sum.x), sum.y = fmaf(w, x.y, sum.y), sum.z = fmaf(w, x.z, sum.z), sum.w = fmaf(w, x.w, sum.w);
}
__device__ void add(float4& sum, float4 x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; }
__device__ void atomic_add(float4* to, float4 x) {
#if AISP_SM >= 90
  atomicAdd(to, x);  // one instruction for all 16 bytes
#else
  float* const each = reinterpret_cast<float*>(to);
  atomicAdd(each, x.x), atomicAdd(each + 1, x.y), atomicAdd(each + 2, x.z), atomicAdd(each + 3, x.w);
#endif
}

// A thread of these has one chunk of one edge.
template <int features>
__global__ void gather_kernel(const float4* x, const int* sources, float4* messages, std::size_t edges) {
  constexpr int chunks = Row<features>::chunks;
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x, edge = i / chunks;
  if (edge < edges) messages[i] = x[static_cast<std::size_t>(sources[edge]) * chunks + i % chunks];
}
template <int features>
__global__ void scale_kernel(const float* weights, float4* messages, std::size_t edges) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x, edge = i / Row<features>::chunks;
  if (edge < edges) messages[i] = scaled(weights[edge], messages[i]);
}
template <int features>
__global__ void scatter_kernel(const float4* messages, const int* targets, float4* y, std::size_t edges) {
  constexpr int chunks = Row<features>::chunks;
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x, edge = i / chunks;
  if (edge < edges) atomic_add(y + static_cast<std::size_t>(targets[edge]) * chunks + i % chunks, messages[i]);
}
template <int features>
__global__ void fused_atomics_kernel(const float4* x, const int* sources, const int* targets, const float* weights, float4* y,
                                     std::size_t edges) {
  constexpr int chunks = Row<features>::chunks;
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x, edge = i / chunks;
  if (edge >= edges) return;
  const float4 neighbour = x[static_cast<std::size_t>(sources[edge]) * chunks + i % chunks];
  atomic_add(y + static_cast<std::size_t>(targets[edge]) * chunks + i % chunks, scaled(weights[edge], neighbour));
}

// The sum over the edges from `begin` to `end`, by one tile. `pitch`: chunks from one row of x to the next.
template <int features>
__device__ void sum_edges(const float4* __restrict__ x, const int* __restrict__ sources, const float* __restrict__ weights,
                          int begin, int end, float4* to, int pitch = Row<features>::chunks) {
  using R = Row<features>;
  const int lane = threadIdx.x % R::lanes;
  float4 sums[R::vectors] = {};
#pragma unroll 4
  for (int edge = begin; edge < end; ++edge) {
    const float4* const from = x + static_cast<std::size_t>(sources[edge]) * static_cast<std::size_t>(pitch) + lane;
#pragma unroll
    for (int v = 0; v < R::vectors; ++v) add_scaled(sums[v], weights[edge], from[v * R::lanes]);
  }
#pragma unroll
  for (int v = 0; v < R::vectors; ++v) to[v * R::lanes + lane] = sums[v];
}

template <int features>
__global__ __launch_bounds__(threads, 4) void tile_per_row_kernel(const float4* x, const int* offsets, const int* sources,
                                                                  const float* weights, float4* y, int nodes) {
  using R = Row<features>;
  const int node = static_cast<int>(blockIdx.x * R::tiles + threadIdx.x / R::lanes);
  if (node >= nodes) return;
  sum_edges<features>(x, sources, weights, offsets[node], offsets[node + 1], y + static_cast<std::size_t>(node) * R::chunks);
}

// A row's edges, or a part of them. The sums of parts lie in memory of their own until all are there.
struct alignas(16) Piece {
  int row, begin, end, part;  // part: -1 where the piece is the whole row
};
struct Hub {
  int row, first_part, parts;
};

template <int features>
__device__ float4* place_of(const Piece& piece, float4* y, float4* parts) {
  return (piece.part < 0 ? y + static_cast<std::size_t>(piece.row) * Row<features>::chunks
                         : parts + static_cast<std::size_t>(piece.part) * Row<features>::chunks);
}

template <int features>
__global__ __launch_bounds__(threads, 4) void pieces_kernel(const float4* x, const int* sources, const float* weights,
                                                            const Piece* pieces, int count, float4* y, float4* parts, int pitch) {
  using R = Row<features>;
  const int i = static_cast<int>(blockIdx.x * R::tiles + threadIdx.x / R::lanes);
  if (i >= count) return;
  const Piece piece = pieces[i];
  sum_edges<features>(x, sources, weights, piece.begin, piece.end, place_of<features>(piece, y, parts), pitch);
}

// A block for each row that was cut; the order of the additions does not depend on which part was done first.
template <int features>
__global__ __launch_bounds__(threads) void add_parts_kernel(const Hub* hubs, const float4* parts, float4* y) {
  using R = Row<features>;
  __shared__ float4 sums[R::tiles][R::chunks];
  const Hub hub = hubs[blockIdx.x];
  const int tile = threadIdx.x / R::lanes, lane = threadIdx.x % R::lanes;
#pragma unroll
  for (int chunk = lane; chunk < R::chunks; chunk += R::lanes) {
    float4 sum{};
    for (int part = tile; part < hub.parts; part += R::tiles)
      add(sum, parts[static_cast<std::size_t>(hub.first_part + part) * R::chunks + chunk]);
    sums[tile][chunk] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= R::chunks) return;
  float4 sum{};
  for (int each = 0; each < R::tiles; ++each) add(sum, sums[each][threadIdx.x]);
  y[static_cast<std::size_t>(hub.row) * R::chunks + threadIdx.x] = sum;
}

// A list of edges in no order, as a data set has them, from the compressed rows: edge i of the rows is edge i * stride of the
// list, modulo their number, which has no divisor in common with the stride.
struct EdgeList {
  int *sources, *targets;
  float* weights;
};
__global__ void list_edges_kernel(const int* offsets, const int* sources, const float* weights, EdgeList list, int nodes,
                                  std::size_t edges, std::size_t stride) {
  const int node = static_cast<int>(blockIdx.x * (threads / 32) + threadIdx.x / 32);
  if (node >= nodes) return;
  for (int edge = offsets[node] + static_cast<int>(threadIdx.x % 32); edge < offsets[node + 1]; edge += 32) {
    const std::size_t place = static_cast<std::size_t>(edge) * stride % edges;
    list.sources[place] = sources[edge], list.targets[place] = node, list.weights[place] = weights[edge];
  }
}

// Few nodes have very many edges, the number of the others falls with the square, and one in 64 has none.
Pattern degrees(std::size_t nodes, std::size_t hub) {
  const Axis all{1, nodes};
  return power_law(8, static_cast<std::int64_t>(std::max<std::size_t>(hub, 8)), 2)
      .set(0, drawn(all, std::max<std::size_t>(nodes / 64, 1)))
      .set(static_cast<float>(hub), drawn(all, 2));
}

class Spmm final : public Workload {
 public:
  explicit Spmm(Setup& setup)
      : nodes_{setup.size("nodes")},
        edges_{nodes_ * setup.size("degree")},
        features_{setup.size("features")},
        x_{setup.input<float>(nodes_ * features_, uniform(-1, 1), {.name = "features"})},
        // Constant: rows are cut, and cuSPARSE looks at the matrix, in `prepare`.
        offsets_{setup.input<int>(nodes_ + 1, row_offsets<int>(degrees(nodes_, setup.size("hub")), static_cast<int>(edges_)),
                                  {.name = "offsets", .constant = true})},
        sources_{setup.input<int>(edges_, integers(0, static_cast<int>(nodes_) - 1), {.name = "sources", .constant = true})},
        weights_{setup.input<float>(edges_, uniform(-1, 1), {.name = "weights", .constant = true})},
        list_sources_{setup.scratch<int>(edges_, {.name = "sources of the list"})},
        list_targets_{setup.scratch<int>(edges_, {.name = "targets of the list"})},
        list_weights_{setup.scratch<float>(edges_, {.name = "weights of the list"})},
        messages_{setup.scratch<float>(edges_ * features_, {.name = "messages"})},
        pieces_{setup.scratch<Piece>(nodes_ + most_parts(), {.name = "pieces of rows"})},
        hubs_{setup.scratch<Hub>(most_parts(), {.name = "rows that are cut"})},
        parts_{setup.scratch<float>(most_parts() * features_, {.name = "sums of parts"})},
        y_{setup.output<float>(nodes_ * features_, {.name = "sums"})},
        sparse_{setup},
        plan_{setup, sparse_,
              SpmmProblem{static_cast<std::int64_t>(nodes_), static_cast<std::int64_t>(nodes_), static_cast<std::int64_t>(edges_),
                          static_cast<std::int64_t>(features_), offsets_, sources_, weights_, x_, y_}},
        reproducible_{setup.reproducible()} {
    with_features([](auto) {});
  }

  Cost cost() const override { return cost_of(x_.bytes()); }
  Cost variant_cost(std::string_view variant) const override { return cost_of(variant == "one_row_of_x" ? 0 : x_.bytes()); }
  double expected(std::size_t i) const override {
    const std::size_t node = i / features_, feature = i % features_;
    double sum = 0;
    for (auto edge = static_cast<std::size_t>(offsets_.host(node)), end = static_cast<std::size_t>(offsets_.host(node + 1));
         edge < end; ++edge)
      sum += weights_.host(edge) * x_.host(static_cast<std::size_t>(sources_.host(edge)) * features_ + feature);
    return sum;
  }

  void list_edges(Launch& launch) {
    std::size_t stride = edges_ * 5 / 8 + 1;  // far from one row to the next
    while (std::gcd(stride, edges_) != 1) ++stride;
    launch(list_edges_kernel, {blocks(nodes_, threads / 32), threads}, offsets_, sources_, weights_,
           EdgeList{list_sources_, list_targets_, list_weights_}, nodes_, edges_, stride);
  }
  void gather_scale_scatter(Launch& launch) {
    with_features([&](auto f) {
      const Grid grid{blocks(edges_ * Row<f>::chunks, threads), threads};
      check(cudaMemsetAsync(y_, 0, y_.bytes(), launch.stream));
      launch(gather_kernel<f>, grid, x(), list_sources_, messages(), edges_);
      launch(scale_kernel<f>, grid, list_weights_, messages(), edges_);
      launch(scatter_kernel<f>, grid, messages(), list_targets_, y(), edges_);
    });
  }
  void fused_atomics(Launch& launch) {
    with_features([&](auto f) {
      check(cudaMemsetAsync(y_, 0, y_.bytes(), launch.stream));
      launch(fused_atomics_kernel<f>, {blocks(edges_ * Row<f>::chunks, threads), threads}, x(), list_sources_, list_targets_,
             list_weights_, y(), edges_);
    });
  }
  void tile_per_row(Launch& launch) {
    with_features([&](auto f) {
      launch(tile_per_row_kernel<f>, {blocks(nodes_, Row<f>::tiles), threads}, x(), offsets_, sources_, weights_, y(), nodes_);
    });
  }

  void cut_rows(Launch& launch) {
    cut_.clear(), hubs_of_.clear();
    int part = 0;
    for (std::size_t row = 0; row < nodes_; ++row) {
      const int begin = offsets_.host(row), end = offsets_.host(row + 1), r = static_cast<int>(row);
      if (end - begin <= longest) {
        cut_.push_back({r, begin, end, -1});
        continue;
      }
      hubs_of_.push_back({r, part, (end - begin + longest - 1) / longest});
      for (int edge = begin; edge < end; edge += longest) cut_.push_back({r, edge, std::min(edge + longest, end), part++});
    }
    check(cudaMemcpyAsync(pieces_, cut_.data(), cut_.size() * sizeof(Piece), cudaMemcpyHostToDevice, launch.stream));
    check(cudaMemcpyAsync(hubs_, hubs_of_.data(), hubs_of_.size() * sizeof(Hub), cudaMemcpyHostToDevice, launch.stream));
  }
  void hubs_split(Launch& launch) { walk(launch, true); }
  void one_row_of_x(Launch& launch) { walk(launch, false); }

  void choose(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    plan_->choose(launch.stream);
  }
  void cusparse(Launch& launch) { plan_->run(launch.stream); }

 private:
  // A row of more than `longest` edges has less than twice as many parts as would be full.
  std::size_t most_parts() const { return 2 * edges_ / longest + 1; }
  // Gathered rows that may lie in an SM's L1 need not pass through L2.
  Cost cost_of(std::size_t x_bytes) const {
    const double l1_bytes = 256 << 10, x = static_cast<double>(x_bytes), gathered = static_cast<double>(messages_.bytes());
    const auto others = static_cast<double>(y_.bytes() + offsets_.bytes() + sources_.bytes() + weights_.bytes());
    return {.flops = 2.0 * static_cast<double>(messages_.size()),
            .bytes = x + others,
            .l2_bytes = others + (x > l1_bytes ? gathered * (1 - l1_bytes / x) : x)};
  }
  static unsigned blocks(std::size_t count, int in_a_block) {
    return static_cast<unsigned>((count + static_cast<std::size_t>(in_a_block) - 1) / static_cast<std::size_t>(in_a_block));
  }
  const float4* x() const { return reinterpret_cast<const float4*>(x_.get()); }
  float4* y() const { return reinterpret_cast<float4*>(y_.get()); }
  float4* messages() const { return reinterpret_cast<float4*>(messages_.get()); }
  float4* parts() const { return reinterpret_cast<float4*>(parts_.get()); }

  template <class Use>
  void with_features(const Use& use) const {
    switch (features_) {
      case 16: return use(std::integral_constant<int, 16>{});
      case 64: return use(std::integral_constant<int, 64>{});
      case 256: return use(std::integral_constant<int, 256>{});
      default: throw Unsupported{"the kernels are compiled for 16, 64 and 256 features"};
    }
  }
  void walk(Launch& launch, bool all_rows) {
    with_features([&](auto f) {
      launch(pieces_kernel<f>, {blocks(cut_.size(), Row<f>::tiles), threads}, x(), sources_, weights_, pieces_, cut_.size(), y(),
             parts(), all_rows ? Row<f>::chunks : 0);
      add_parts<f>(launch);
    });
  }
  template <int features>
  void add_parts(Launch& launch) const {
    if (!hubs_of_.empty())
      launch(add_parts_kernel<features>, {static_cast<unsigned>(hubs_of_.size()), threads}, hubs_, parts(), y());
  }

  std::size_t nodes_, edges_, features_;
  Input<float> x_;
  Input<int> offsets_, sources_;
  Input<float> weights_;
  Scratch<int> list_sources_, list_targets_;
  Scratch<float> list_weights_;
  Scratch<float> messages_;
  Scratch<Piece> pieces_;
  Scratch<Hub> hubs_;
  Scratch<float> parts_;
  Output<float> y_;
  Opened<Cusparse> sparse_;
  Opened<SpmmPlan> plan_;
  bool reproducible_;
  std::vector<Piece> cut_;
  std::vector<Hub> hubs_of_;
};

constexpr KernelLimits no_spills{.local_bytes = 0};

}  // namespace

extern constinit const Pair spmm{
    .teaches = "messages along the edges of a graph are a sparse-dense product, which needs no row in memory for an edge",
    .lesson = "tile_per_row",
    .make = make<Spmm>,
    .baseline = {.name = "gather_scale_scatter",
                 .run = call<&Spmm::gather_scale_scatter>,
                 .prepare = call<&Spmm::list_edges>,
                 .deterministic = false},
    .optimized = variants(
        {{.name = "fused_atomics", .run = call<&Spmm::fused_atomics>, .prepare = call<&Spmm::list_edges>, .deterministic = false},
         {.name = "tile_per_row", .run = call<&Spmm::tile_per_row>, .kernels = no_spills},
         {.name = "hubs_split", .run = call<&Spmm::hubs_split>, .prepare = call<&Spmm::cut_rows>, .kernels = no_spills}}),
    // All gathers read the same row, which L1 holds: what is left is not the gather through L2. Its sums are wrong.
    .controls = variants({{.name = "one_row_of_x",
                           .run = call<&Spmm::one_row_of_x>,
                           .prepare = call<&Spmm::cut_rows>,
                           .outputs = no_outputs,
                           .kernels = no_spills}}),
    .libraries = variants({{.name = "cusparse",
                            .run = call<&Spmm::cusparse>,
                            .prepare = call<&Spmm::choose>,
                            .needs = {.libraries = {Library::cusparse}},
                            .deterministic = false}}),
    // Sums of up to 64 Ki products of either sign, one after the other, are off by 5e-6 of their size; most are much shorter. Of
    // the root mean square of all sums, which is that of 64 products, a hub's error has a deviation of 3e-4.
    .tolerance = within(1e-5, 1e-3),
    .sizes = sizes({{.name = "nodes", .full = 131072, .most = 1 << 20},
                    {.name = "degree", .full = 64, .most = 1024, .scales = false},
                    {.name = "features", .full = 64, .multiple = 16, .most = 256, .scales = false},
                    {.name = "hub", .full = 4096, .most = 1 << 20, .scales = false}}),
    .sweep = cases({{"features_16", "features=16"},
                    {"features_64", "features=64"},
                    {"features_256", "features=256"},
                    {"hubs_of_1024", "hub=1024"},
                    {"hubs_of_4096", "hub=4096"},
                    {"hubs_of_16384", "hub=16384"},
                    {"hubs_of_65536", "hub=65536"}}),
    .edges = cases({{"one_node", "nodes=1"},
                    {"odd_nodes", "nodes=777,features=16"},
                    {"wide_rows", "nodes=1001,features=256"},
                    {"no_hubs", "nodes=1000,degree=3,hub=8"}}),
};

}  // namespace aisp::ch09
