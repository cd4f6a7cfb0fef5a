// SPDX-License-Identifier: Apache-2.0
// An embedding table is too large for one GPU, so each holds a shard of its rows, and every GPU looks up rows of all shards. As
// an exchange of messages that takes five passes: sort the row numbers by owner, tell the host how many there are of each, send
// them, gather on the owner's side and send the rows back, and put them in order. Where the shards lie in memory that all GPUs
// address, one kernel loads each row from where it is.
#include <cuda_bf16.h>
#include <aisp/device/vector.cuh>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <bit>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpus.hpp"

namespace aisp::ch04 {
namespace {

using bf16 = __nv_bfloat16;
constexpr int threads = 256, warps = threads / 32;
constexpr int rows_per_thread = 4;  // on their way at once
constexpr unsigned ids_per_thread = 16, ids_per_block = threads * ids_per_thread;

struct Table {
  OnGpus<const uint4> shards;
  unsigned shard_rows;  // of each GPU
  unsigned lanes;       // 16-byte pieces of a row

  __device__ __forceinline__ unsigned owner(unsigned row) const { return row / shard_rows; }
  __device__ __forceinline__ const uint4* piece(unsigned row, unsigned lane) const {
    const unsigned gpu = owner(row);
    return shards.at[gpu] + std::size_t{row - gpu * shard_rows} * lanes + lane;
  }
};

// out[i] = row ids[i], a lane a thread. `only`: of which GPU's shard all rows are taken instead, by their place in it; -1: of
// their own.
__global__ __launch_bounds__(threads) void gather_kernel(const __grid_constant__ Table table, const int* __restrict__ ids,
                                                         uint4* __restrict__ out, unsigned rows, int only) {
  const unsigned per_pass = threads / table.lanes, lane = threadIdx.x % table.lanes;
  const unsigned first = blockIdx.x * per_pass * rows_per_thread + threadIdx.x / table.lanes;
  uint4 loaded[rows_per_thread];
#pragma unroll
  for (int k = 0; k < rows_per_thread; ++k) {
    const unsigned i = first + k * per_pass;
    if (i >= rows) continue;
    unsigned row = static_cast<unsigned>(ids[i]);
    if (only >= 0) row = static_cast<unsigned>(only) * table.shard_rows + row % table.shard_rows;
    loaded[k] = device::load_once(table.piece(row, lane));
  }
#pragma unroll
  for (int k = 0; k < rows_per_thread; ++k) {
    const unsigned i = first + k * per_pass;
    if (i < rows) device::store_streaming(out + std::size_t{i} * table.lanes + lane, loaded[k]);
  }
}

// out[origin[i]] = in[i]; places without an origin hold nothing.
__global__ __launch_bounds__(threads) void restore_order_kernel(const int* __restrict__ origin, const uint4* __restrict__ in,
                                                                uint4* __restrict__ out, unsigned rows, unsigned lanes) {
  const unsigned per_pass = threads / lanes, lane = threadIdx.x % lanes;
  const unsigned first = blockIdx.x * per_pass * rows_per_thread + threadIdx.x / lanes;
#pragma unroll
  for (int k = 0; k < rows_per_thread; ++k) {
    const unsigned i = first + k * per_pass;
    if (i >= rows || origin[i] < 0) continue;
    device::store_streaming(out + std::size_t{static_cast<unsigned>(origin[i])} * lanes + lane,
                            device::load_once(in + std::size_t{i} * lanes + lane));
  }
}

// Calls use(k, owner, ids before it in its warp's part of the same owner) for each of the thread's ids, and returns the warp's
// count of each owner in lane `owner`.
template <class Use>
__device__ __forceinline__ unsigned for_ids_by_owner(const Table& table, const int* ids, unsigned count, int gpus, Use use) {
  const unsigned lane = threadIdx.x % 32, warp_first = blockIdx.x * ids_per_block + threadIdx.x / 32 * (32 * ids_per_thread);
  unsigned mine = 0;
  for (unsigned k = 0; k < ids_per_thread; ++k) {
    const unsigned i = warp_first + k * 32 + lane;
    const int owner = i < count ? static_cast<int>(table.owner(static_cast<unsigned>(ids[i]))) : -1;
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const unsigned same = __ballot_sync(~0u, owner == gpu);
      const unsigned before = __shfl_sync(~0u, mine, gpu);
      if (owner == gpu) use(i, gpu, before + __popc(same & ((1u << lane) - 1)));
      if (lane == static_cast<unsigned>(gpu)) mine += __popc(same);
    }
  }
  return mine;
}

__global__ __launch_bounds__(threads) void count_kernel(const __grid_constant__ Table table, const int* __restrict__ ids,
                                                        unsigned count, int gpus, unsigned* counts) {
  const unsigned mine = for_ids_by_owner(table, ids, count, gpus, [](unsigned, int, unsigned) {});
  if (const unsigned lane = threadIdx.x % 32; lane < static_cast<unsigned>(gpus) && mine > 0) atomicAdd(counts + lane, mine);
}

// Puts ids of one owner next to each other, with the places they came from. The part of an owner begins at its number times
// `capacity`, or, where that is 0, where the counted parts before it end; `taken` counts what stands in each already.
__global__ __launch_bounds__(threads) void sort_by_owner_kernel(const __grid_constant__ Table table, const int* __restrict__ ids,
                                                                unsigned count, int gpus, const unsigned* __restrict__ counts,
                                                                unsigned capacity, unsigned* taken, int* __restrict__ sorted,
                                                                int* __restrict__ origin) {
  __shared__ unsigned of_warp[warps][most_gpus];
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned mine = for_ids_by_owner(table, ids, count, gpus, [](unsigned, int, unsigned) {});
  if (lane < most_gpus) of_warp[warp][lane] = mine;
  __syncthreads();
  if (threadIdx.x < static_cast<unsigned>(gpus)) {
    const unsigned owner = threadIdx.x;
    unsigned total = 0;
    for (const auto& each : of_warp) total += each[owner];
    unsigned begin = capacity * owner;
    if (capacity == 0)
      for (unsigned before = 0; before < owner; ++before) begin += counts[before];
    unsigned next = begin + atomicAdd(taken + owner, total);
    for (auto& each : of_warp) {
      const unsigned own = each[owner];
      each[owner] = next;
      next += own;
    }
  }
  __syncthreads();
  for_ids_by_owner(table, ids, count, gpus, [&](unsigned i, int owner, unsigned before) {
    const unsigned place = of_warp[warp][owner] + before;
    if (capacity != 0 && place >= capacity * static_cast<unsigned>(owner + 1)) return;  // its row stays unwritten, and is missed
    sorted[place] = ids[i];
    origin[place] = static_cast<int>(i);
  });
}

class SymmetricMemory final : public Workload {
 public:
  explicit SymmetricMemory(Setup& setup)
      : gpus_{setup},
        row_bytes_{setup.size("row_bytes")},
        columns_{row_bytes_ / sizeof(bf16)},
        shard_rows_{setup.scaled((std::size_t{4} << 30) / row_bytes_ / static_cast<std::size_t>(gpus_.count()))},
        lookups_{setup.scaled((std::size_t{436} << 20) / row_bytes_, ids_per_block)},
        capacity_{lookups_ / static_cast<std::size_t>(gpus_.count()) * 17 / 16 + ids_per_block},
        host_counts_{setup.scratch<unsigned>(most_gpus * most_gpus, {.name = "counts", .memory = Memory::pinned})},
        nccl_{setup, gpus_.ordinals(), gpus_.count()} {
    if (!std::has_single_bit(row_bytes_)) throw Unsupported{"row_bytes is 64, 128, 256, 512, 1024 or 2048"};
    const std::size_t places = capacity_ * static_cast<std::size_t>(gpus_.count());
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      const std::string number = std::to_string(gpu);
      shards_.add(
          setup.input<bf16>(shard_rows_ * columns_, uniform(-1, 1), {.name = ("shard of GPU " + number).c_str(), .device = gpu}));
      ids_.add(setup.input<int>(lookups_, integers(0, static_cast<std::int64_t>(rows()) - 1),
                                {.name = ("row numbers of GPU " + number).c_str(), .device = gpu}));
      out_.add(setup.output<bf16>(lookups_ * columns_, {.name = ("rows on GPU " + number).c_str(), .device = gpu}));
      counts_.add(setup.scratch<unsigned>(2 * most_gpus, {.device = gpu}));  // of ids by owner; and those placed
      sorted_.add(setup.scratch<int>(places, {.device = gpu}));
      origin_.add(setup.scratch<int>(places, {.device = gpu}));
      asked_.add(setup.scratch<int>(places, {.device = gpu}));
      answers_.add(setup.scratch<bf16>(places * columns_, {.device = gpu}));
      received_.add(setup.scratch<bf16>(places * columns_, {.device = gpu}));
    }
  }

  // Rows come from all shards alike. A GPU reads what it and the others ask of its own.
  Cost cost() const override { return cost_of(1 - 1.0 / gpus_.count()); }
  Cost variant_cost(std::string_view variant) const override {
    return variant == "all_local" ? cost_of(0) : variant == "all_remote" ? cost_of(1) : cost();
  }
  double expected_output(int output, std::size_t index) const override {
    const auto row = static_cast<std::size_t>(ids_[output].host(index / columns_));
    return shards_[static_cast<int>(row / shard_rows_)].host(row % shard_rows_ * columns_ + index % columns_);
  }
  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report_rate("lookups", static_cast<double>(lookups_) * gpus_.count() / 1e9, "G rows/s");
  }

  void exchange(Launch& launch) {
    const Streams streams = launch.streams;
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      clear(gpu, streams);
      gpus_.launch(gpu, streams[gpu], count_kernel, {id_blocks(), threads}, table(), ids_[gpu].get(), id_count(), gpus_.count(),
                   counts_[gpu].get());
      sort_by_owner(gpu, streams, 0);
      check(cudaMemcpyAsync(host_counts_ + gpu * most_gpus, counts_[gpu], most_gpus * sizeof(unsigned), cudaMemcpyDeviceToHost,
                            streams[gpu]));
    }
    // The library's calls take their counts from the host.
    for (const cudaStream_t each : streams) check(cudaStreamSynchronize(each));
    Parts parts{};
    for (int from = 0; from < gpus_.count(); ++from) {
      std::size_t sent = 0;
      for (int to = 0; to < gpus_.count(); ++to) {
        const std::size_t count = host_counts_[from * most_gpus + to];
        if (count > capacity_) throw std::runtime_error{"one shard is asked for more rows than the exchange has room for"};
        parts.at[from][to] = {sent, count};
        sent += count;
      }
    }
    exchange_and_restore(streams, parts);
  }

  void fixed_capacity(Launch& launch) {
    const Streams streams = launch.streams;
    Parts parts{};
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      clear(gpu, streams);
      const SelectedGpu selected{gpus_.ordinal(gpu)};
      check(cudaMemsetAsync(sorted_[gpu], 0, sorted_[gpu].bytes(), streams[gpu]));
      check(cudaMemsetAsync(origin_[gpu], 0xFF, origin_[gpu].bytes(), streams[gpu]));
      sort_by_owner(gpu, streams, static_cast<unsigned>(capacity_));
      for (int to = 0; to < gpus_.count(); ++to) parts.at[gpu][to] = {static_cast<std::size_t>(to) * capacity_, capacity_};
    }
    exchange_and_restore(streams, parts);
  }

  void peer_gather(Launch& launch) {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) gather(gpu, launch.streams, ids_[gpu], out_[gpu], lookups_);
    gpus_.meet(launch.streams);
  }
  void all_local(Launch& launch) {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) gather(gpu, launch.streams, ids_[gpu], out_[gpu], lookups_, gpu);
  }
  void all_remote(Launch& launch) {
    for (int gpu = 0; gpu < gpus_.count(); ++gpu)
      gather(gpu, launch.streams, ids_[gpu], out_[gpu], lookups_, (gpu + 1) % gpus_.count());
  }

 private:
  struct Part {
    std::size_t first, count;
  };
  struct Parts {
    Part at[most_gpus][most_gpus];  // of the sorted ids of one GPU, those of another's shard
  };

  Cost cost_of(double remote_share) const {
    const auto bytes = static_cast<double>(out_[0].bytes());
    return {.bytes = 2 * bytes, .peer_bytes = bytes * remote_share};
  }
  std::size_t rows() const { return shard_rows_ * static_cast<std::size_t>(gpus_.count()); }
  unsigned lanes() const { return static_cast<unsigned>(row_bytes_ / sizeof(uint4)); }
  unsigned id_count() const { return static_cast<unsigned>(lookups_); }
  unsigned id_blocks() const { return static_cast<unsigned>(lookups_ / ids_per_block); }
  Grid row_grid(std::size_t rows) const {
    const std::size_t of_block = threads / lanes() * rows_per_thread;
    return {static_cast<unsigned>((rows + of_block - 1) / of_block), threads};
  }
  Table table() const {
    Table table{{}, static_cast<unsigned>(shard_rows_), lanes()};
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) table.shards.at[gpu] = reinterpret_cast<const uint4*>(shards_[gpu].get());
    return table;
  }
  void gather(int gpu, Streams streams, const int* ids, bf16* out, std::size_t rows, int only = -1) const {
    gpus_.launch(gpu, streams[gpu], gather_kernel, row_grid(rows), table(), ids, reinterpret_cast<uint4*>(out),
                 static_cast<unsigned>(rows), only);
  }
  void clear(int gpu, Streams streams) const {
    const SelectedGpu selected{gpus_.ordinal(gpu)};
    check(cudaMemsetAsync(counts_[gpu], 0, counts_[gpu].bytes(), streams[gpu]));
  }
  void sort_by_owner(int gpu, Streams streams, unsigned capacity) const {
    gpus_.launch(gpu, streams[gpu], sort_by_owner_kernel, {id_blocks(), threads}, table(), ids_[gpu].get(), id_count(),
                 gpus_.count(), counts_[gpu].get(), capacity, counts_[gpu].get() + most_gpus, sorted_[gpu].get(),
                 origin_[gpu].get());
  }
  std::size_t asked_by(int gpu) const { return static_cast<std::size_t>(gpu) * capacity_; }  // of asked_ and answers_

  void exchange_and_restore(Streams streams, const Parts& parts) const {
    const int gpus = gpus_.count();
    const auto for_others = [&](const auto& use) {
      for (int from = 0; from < gpus; ++from)
        for (int to = 0; to < gpus; ++to)
          if (from != to) use(from, to, parts.at[from][to]);
    };
    nccl_->together([&] {
      for_others([&](int from, int to, const Part& part) {
        nccl_->send(from, sorted_[from] + part.first, part.count, nccl::Type::int32, to, streams[from]);
        nccl_->receive(to, asked_[to] + asked_by(from), part.count, nccl::Type::int32, from, streams[to]);
      });
    });
    for_others([&](int from, int to, const Part& part) {
      gather(to, streams, asked_[to] + asked_by(from), answers_[to] + asked_by(from) * columns_, part.count, to);
    });
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const Part& own = parts.at[gpu][gpu];
      gather(gpu, streams, sorted_[gpu] + own.first, received_[gpu] + own.first * columns_, own.count, gpu);
    }
    nccl_->together([&] {
      for_others([&](int from, int to, const Part& part) {
        nccl_->send(to, answers_[to] + asked_by(from) * columns_, part.count * columns_, nccl::Type::bf16, from, streams[to]);
        nccl_->receive(from, received_[from] + part.first * columns_, part.count * columns_, nccl::Type::bf16, to, streams[from]);
      });
    });
    for (int gpu = 0; gpu < gpus; ++gpu) {
      const Part& last = parts.at[gpu][gpus - 1];
      const std::size_t places = last.first + last.count;
      gpus_.launch(gpu, streams[gpu], restore_order_kernel, row_grid(places), origin_[gpu].get(),
                   reinterpret_cast<const uint4*>(received_[gpu].get()), reinterpret_cast<uint4*>(out_[gpu].get()),
                   static_cast<unsigned>(places), lanes());
    }
  }

  Gpus gpus_;
  std::size_t row_bytes_, columns_, shard_rows_, lookups_, capacity_;
  Scratch<unsigned> host_counts_;
  Each<Input<bf16>> shards_;
  Each<Input<int>> ids_;
  Each<Output<bf16>> out_;
  Each<Scratch<unsigned>> counts_;
  Each<Scratch<int>> sorted_, origin_, asked_;
  Each<Scratch<bf16>> answers_, received_;
  Opened<Nccl> nccl_;
};

}  // namespace

extern constinit const Pair symmetric_memory{
    .teaches = "kernels can load any GPU's rows where they lie: sort, two exchanges and unsort become one gather",
    .lesson = "peer_gather",
    .make = make<SymmetricMemory>,
    .baseline = {.name = "exchange", .run = call<&SymmetricMemory::exchange>, .needs = {.libraries = {Library::nccl}}},
    .optimized = variants(
        {{.name = "fixed_capacity", .run = call<&SymmetricMemory::fixed_capacity>, .needs = {.libraries = {Library::nccl}}},
         {.name = "peer_gather", .run = call<&SymmetricMemory::peer_gather>}}),
    .controls = variants({{.name = "all_local", .run = call<&SymmetricMemory::all_local>, .outputs = no_outputs},
                          {.name = "all_remote", .run = call<&SymmetricMemory::all_remote>, .outputs = no_outputs}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .needs = {.gpus = 2, .peer_access = true, .libraries = {Library::nccl}},
    .start = Start::immediate,  // the exchange waits for its counts on the host
    .sizes = sizes({{.name = "row_bytes", .full = 256, .multiple = 64, .most = 2048, .scales = false}}),
    .sweep = cases({{"row_64", "row_bytes=64"},
                    {"row_128", "row_bytes=128"},
                    {"row_256", "row_bytes=256"},
                    {"row_512", "row_bytes=512"},
                    {"row_2048", "row_bytes=2048"}}),
};

}  // namespace aisp::ch04
