// SPDX-License-Identifier: Apache-2.0
// A prompt's keys and values go from the GPU that prefills to the GPU that decodes, whose pages are larger and ordered otherwise.
// Gather into a buffer, copy and scatter on the other side cross device memory three times on each way. A kernel of the receiver
// that loads from the sender's pages and stores into its own crosses it once, and needs no buffer.
#include <cuda_bf16.h>
#include <aisp/device/vector.cuh>
#include <aisp/device_attribute.hpp>
#include <aisp/libraries/nccl.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include "decoder/pages.hpp"
#include "two_gpus.hpp"

namespace aisp::ch15 {
namespace {

using bf16 = __nv_bfloat16;
using shared::copy_to_other, shared::on_both;

constexpr unsigned heads = 8, head_size = 128, row_elements = heads * head_size;  // keys of a token in a layer, or its values
constexpr unsigned sent_rows = decoder::page_rows, kept_rows = 32;                // tokens of a page of the sender, the receiver
constexpr unsigned spare_pages = 16;                                              // of each cache, of other requests

// A piece is 16 bytes of a head's vector. Pieces are numbered as the sender's pages hold them: [plane][page][token][head][lane],
// where a plane is the keys or the values of a layer.
constexpr unsigned lanes = head_size * sizeof(bf16) / sizeof(uint4), token_pieces = heads * lanes,
                   page_pieces = sent_rows * token_pieces;
constexpr unsigned threads = 256, pieces_per_thread = 4, block_pieces = threads * pieces_per_thread;
constexpr unsigned chunk_pieces = (16u << 20) / sizeof(uint4);
constexpr int slots = 2;  // of a staging buffer for chunks

struct Piece {
  unsigned number, plane, page, token, head, lane;  // token: of the sequence
};
__device__ __forceinline__ Piece piece_of(unsigned number, unsigned pages) {
  const unsigned page_of_all = number / page_pieces, plane = page_of_all / pages, page = page_of_all - plane * pages;
  return {number, plane, page, page * sent_rows + number / token_pieces % sent_rows, number / lanes % heads, number % lanes};
}

struct SentPages {  // [token][head][head_size] each
  const uint4* pool;
  const int* table;
  unsigned pool_pages;  // of a plane
  __device__ __forceinline__ const uint4* at(const Piece& piece) const {
    return pool + (std::size_t{piece.plane} * pool_pages + table[piece.page]) * page_pieces + piece.number % page_pieces;
  }
};
struct KeptPages {  // [head][token][head_size] each
  uint4* pool;
  const int* table;
  unsigned pool_pages;
  __device__ __forceinline__ uint4* at(const Piece& piece) const {
    const std::size_t page = std::size_t{piece.plane} * pool_pages + table[piece.token / kept_rows];
    return pool + ((page * heads + piece.head) * kept_rows + piece.token % kept_rows) * lanes + piece.lane;
  }
};
struct Packed {  // from piece `first` on
  uint4* data;
  unsigned first;
  __device__ __forceinline__ uint4* at(const Piece& piece) const { return data + (piece.number - first); }
};

// Moves the pieces from `first` to `end` that belong to one of the tokens. Loads over NVLink take long, so each thread has four
// under way.
template <class From, class To>
__global__ __launch_bounds__(threads) void relay_kernel(const From from, const To to, unsigned first, unsigned end,
                                                        unsigned pages, unsigned tokens) {
  for (unsigned begin = first + blockIdx.x * block_pieces; begin < end; begin += gridDim.x * block_pieces) {
    uint4 loaded[pieces_per_thread];
#pragma unroll
    for (unsigned k = 0; k < pieces_per_thread; ++k) {
      const Piece piece = piece_of(begin + k * threads + threadIdx.x, pages);
      if (piece.number < end && piece.token < tokens) loaded[k] = device::load_once(static_cast<const uint4*>(from.at(piece)));
    }
#pragma unroll
    for (unsigned k = 0; k < pieces_per_thread; ++k) {
      const Piece piece = piece_of(begin + k * threads + threadIdx.x, pages);
      if (piece.number < end && piece.token < tokens) device::store_streaming(to.at(piece), loaded[k]);
    }
  }
}

// A decode step as device memory sees it: a stream of weights and keys. Its blocks leave room for others on their SMs.
constexpr unsigned step_threads = 512, step_loads = 4;
constexpr std::size_t step_packets = (std::size_t{512} << 20) / sizeof(uint4);
constexpr int step_passes = 4;
__global__ __launch_bounds__(step_threads) void read_kernel(const uint4* from, std::size_t packets, unsigned* unused) {
  unsigned bits = 0;
  const std::size_t stride = std::size_t{gridDim.x} * step_threads * step_loads;
  for (std::size_t i = std::size_t{blockIdx.x} * step_threads * step_loads + threadIdx.x; i < packets; i += stride) {
    uint4 loaded[step_loads];
#pragma unroll
    for (unsigned k = 0; k < step_loads; ++k) loaded[k] = device::load_once(from + i + k * step_threads);
#pragma unroll
    for (const uint4& each : loaded) bits |= each.x ^ each.y ^ each.z ^ each.w;
  }
  if (bits == 0) *unused = bits;  // so that the loads stay
}

class KvHandoff final : public Workload {
 public:
  explicit KvHandoff(Setup& setup)
      : gpus_{setup},
        tokens_{static_cast<unsigned>(setup.size("tokens"))},
        planes_{2 * static_cast<unsigned>(setup.size("layers"))},
        blocks_{static_cast<unsigned>(setup.size("blocks"))},
        sent_table_{shuffled(pages_of(sent_rows), 15)},
        kept_table_{shuffled(pages_of(kept_rows), 16)},
        sequence_page_(pages_of(kept_rows) + spare_pages, -1),
        sent_{setup.input<bf16>(elements_of(sent_rows), normal(0, 1), {.name = "pages of the sender"})},
        kept_{setup.inout<bf16>(elements_of(kept_rows), normal(0, 1), {.name = "pages of the receiver", .device = 1})},
        sent_pages_{on_both([&](int gpu) { return table(setup, sent_table_, "sender's page table", gpu); })},
        kept_pages_{on_both([&](int gpu) { return table(setup, kept_table_, "receiver's page table", gpu); })},
        staged_{on_both([&](int gpu) { return setup.scratch<uint4>(pieces(), {.name = "staging", .device = gpu}); })},
        chunks_{on_both(
            [&](int gpu) { return setup.scratch<uint4>(slots * chunk_pieces, {.name = "staging of chunks", .device = gpu}); })},
        weights_{on_both([&](int gpu) { return setup.scratch<uint4>(step_packets, {.name = "weights", .device = gpu}); })},
        unused_{on_both([&](int gpu) { return setup.scratch<unsigned>(1, {.device = gpu}); })},
        copying_{setup.stream(0)},
        decoding_{setup.stream(0), setup.stream(1)},
        noting_{setup.stream(0)},
        nccl_{setup, gpus_.ordinals(), 2} {
    for (std::size_t page = 0; page < kept_table_.size(); ++page)
      sequence_page_[static_cast<std::size_t>(kept_table_[page])] = static_cast<int>(page);
    for (int slot = 0; slot < slots; ++slot) {
      gathered_.push_back(setup.event(0));
      copied_.push_back(setup.event(0));
      scattered_.push_back(setup.event(1));
    }
  }

  // Read once by the sender, once over the link, written once by the receiver.
  Cost cost() const override { return {.bytes = moved_bytes(), .peer_bytes = moved_bytes()}; }
  Cost variant_cost(std::string_view variant) const override {
    const double step = variant.starts_with("decode") ? step_passes * static_cast<double>(weights_[0].bytes()) : 0;
    const double moved = variant == "decode_alone" ? 0 : moved_bytes();
    return {.bytes = moved + step, .peer_bytes = moved};
  }
  double expected(std::size_t index) const override {
    const std::size_t column = index % head_size, row = index / head_size % kept_rows,
                      head = index / (head_size * kept_rows) % heads, page_of_all = index / (row_elements * kept_rows),
                      plane = page_of_all / sequence_page_.size();
    const int page = sequence_page_[page_of_all % sequence_page_.size()];
    const std::size_t token = static_cast<std::size_t>(page) * kept_rows + row;
    if (page < 0 || token >= tokens_) return kept_.initial(index);
    const std::size_t sent_page = plane * sent_pool() + static_cast<std::size_t>(sent_table_[token / sent_rows]);
    return sent_.host((sent_page * sent_rows + token % sent_rows) * row_elements + head * head_size + column);
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    if (variant != "decode_alone") metrics.report_rate("moved", moved_bytes() / 1e9, "GB/s");
  }

  void gather_copy_scatter(Launch& launch) {
    relay(0, launch.streams[0], sent(0), Packed{staged_[0], 0}, 0, pieces());
    copy_to_other(gpus_, 0, staged_[1], staged_[0], staged_[0].bytes(), launch.streams[0]);
    gpus_.order(0, launch.streams[0], launch.streams[1]);
    relay(1, launch.streams[1], Packed{staged_[1], 0}, kept(1), 0, pieces());
  }
  void direct_pull(Launch& launch) { relay(1, launch.streams[1], sent(1), kept(1), 0, pieces(), blocks_); }
  void direct_push(Launch& launch) { relay(0, launch.streams[0], sent(0), kept(0), 0, pieces(), blocks_); }

  // A chunk is gathered while the one before it crosses the link and the one before that is scattered.
  void chunked(Launch& launch) {
    const cudaStream_t gathering = launch.streams[0], scattering = launch.streams[1];
    unsigned chunk = 0;
    for (unsigned first = 0; first < pieces(); first += chunk_pieces, ++chunk) {
      const unsigned end = std::min(first + chunk_pieces, pieces()), slot = chunk % slots;
      const Packed here{chunks_[0] + slot * chunk_pieces, first}, there{chunks_[1] + slot * chunk_pieces, first};
      if (chunk >= slots) {
        check(cudaStreamWaitEvent(gathering, copied_[slot]));
        check(cudaStreamWaitEvent(copying_, scattered_[slot]));
      }
      relay(0, gathering, sent(0), here, first, end);
      check(cudaEventRecord(gathered_[slot], gathering));
      check(cudaStreamWaitEvent(copying_, gathered_[slot]));
      copy_to_other(gpus_, 0, there.data, here.data, (end - first) * sizeof(uint4), copying_);
      check(cudaEventRecord(copied_[slot], copying_));
      check(cudaStreamWaitEvent(scattering, copied_[slot]));
      relay(1, scattering, there, kept(1), first, end);
      check(cudaEventRecord(scattered_[slot], scattering));
    }
  }

  void copy_alone(Launch& launch) { copy_to_other(gpus_, 0, staged_[1], staged_[0], staged_[0].bytes(), launch.streams[0]); }
  void pull_alone(Launch& launch) {
    relay(1, launch.streams[1], Packed{staged_[0], 0}, Packed{staged_[1], 0}, 0, pieces(), blocks_);
  }
  void nccl_alone(Launch& launch) {
    nccl_->together([&] {
      nccl_->send(0, staged_[0], staged_[0].bytes(), nccl::Type::int8, 1, launch.streams[0]);
      nccl_->receive(1, staged_[1], staged_[1].bytes(), nccl::Type::int8, 0, launch.streams[1]);
    });
  }

  void decode_alone(Launch& launch) {
    while_decoding(launch, [] {});
  }
  void decode_during_chunked(Launch& launch) {
    while_decoding(launch, [&] { chunked(launch); });
  }
  void decode_during_pull(Launch& launch) {
    while_decoding(launch, [&] { direct_pull(launch); });
  }
  void decode_during_push(Launch& launch) {
    while_decoding(launch, [&] { direct_push(launch); });
  }

 private:
  unsigned pages_of(unsigned rows) const { return (tokens_ + rows - 1) / rows; }
  unsigned sent_pool() const { return pages_of(sent_rows) + spare_pages; }
  unsigned kept_pool() const { return pages_of(kept_rows) + spare_pages; }
  std::size_t elements_of(unsigned rows) const {
    return std::size_t{planes_} * (pages_of(rows) + spare_pages) * rows * row_elements;
  }
  unsigned pieces() const { return planes_ * pages_of(sent_rows) * page_pieces; }
  double moved_bytes() const { return static_cast<double>(tokens_) * planes_ * row_elements * sizeof(bf16); }

  static std::vector<int> shuffled(unsigned pages, std::uint64_t seed) {
    decoder::PageAllocator allocator{static_cast<int>(pages + spare_pages), seed};
    std::vector<int> taken(pages);
    for (int& page : taken) page = allocator.take();
    return taken;
  }
  static Input<int> table(Setup& setup, const std::vector<int>& pages, const char* name, int gpu) {
    return setup.input<int>(pages.size(), [pages](std::span<int> to, std::uint64_t) { std::ranges::copy(pages, to.begin()); },
                            {.name = name, .device = gpu, .constant = true});
  }

  // As a kernel of `gpu` sees them: it has both tables in its own memory.
  SentPages sent(int gpu) const {
    return {reinterpret_cast<const uint4*>(sent_.get()), sent_pages_[static_cast<std::size_t>(gpu)], sent_pool()};
  }
  KeptPages kept(int gpu) const {
    return {reinterpret_cast<uint4*>(kept_.get()), kept_pages_[static_cast<std::size_t>(gpu)], kept_pool()};
  }
  template <class From, class To>
  void relay(int gpu, cudaStream_t stream, const From& from, const To& to, unsigned first, unsigned end,
             unsigned most_blocks = ~0u) const {
    const unsigned blocks = std::min((end - first + block_pieces - 1) / block_pieces, most_blocks);
    gpus_.launch(gpu, stream, relay_kernel<From, To>, {blocks, threads}, from, to, first, end, pages_of(sent_rows), tokens_);
  }

  // A decode step on each GPU, begun before `handover` and shorter than it.
  template <class Handover>
  void while_decoding(Launch& launch, Handover handover) {
    for (const std::size_t gpu : {0, 1}) {
      const int number = static_cast<int>(gpu);
      gpus_.order(number, launch.streams[gpu], decoding_[gpu]);
      for (int pass = 0; pass < step_passes; ++pass)
        gpus_.launch(number, decoding_[gpu], read_kernel, {2 * multiprocessors(), step_threads}, weights_[gpu].get(),
                     step_packets, unused_[gpu].get());
    }
    handover();
    launch.mark("decode_on_sender", decoding_[0]);
    gpus_.order(1, decoding_[1], noting_);  // marks are made on the first GPU
    launch.mark("decode_on_receiver", noting_);
    gpus_.order(0, decoding_[0], launch.streams[0]);
    gpus_.order(0, noting_, launch.streams[0]);
  }

  shared::Gpus gpus_;
  unsigned tokens_, planes_, blocks_;
  std::vector<int> sent_table_, kept_table_, sequence_page_;  // the last: of each page of the receiver, -1: of another request
  Input<bf16> sent_;
  InOut<bf16> kept_;
  std::array<Input<int>, 2> sent_pages_, kept_pages_;
  std::array<Scratch<uint4>, 2> staged_, chunks_, weights_;
  std::array<Scratch<unsigned>, 2> unused_;
  cudaStream_t copying_;
  std::array<cudaStream_t, 2> decoding_;
  cudaStream_t noting_;
  std::vector<cudaEvent_t> gathered_, copied_, scattered_;
  Opened<Nccl> nccl_;
};

}  // namespace

extern constinit const Pair kv_handoff{
    .teaches =
        "gather, copy and scatter pass a cache through memory three times; a kernel that pulls pages relays them in one pass",
    .lesson = "direct_pull",
    .make = make<KvHandoff>,
    .baseline = {.name = "gather_copy_scatter", .run = call<&KvHandoff::gather_copy_scatter>},
    .optimized = variants({{.name = "direct_pull", .run = call<&KvHandoff::direct_pull>, .same_bits_as = "gather_copy_scatter"},
                           {.name = "direct_push", .run = call<&KvHandoff::direct_push>, .same_bits_as = "gather_copy_scatter"}}),
    // The stages of the baseline overlapped; the link alone, by a copy engine, a kernel and NCCL; and a decode step on each GPU
    // at the same time.
    .controls = variants({{.name = "chunked", .run = call<&KvHandoff::chunked>, .same_bits_as = "gather_copy_scatter"},
                          {.name = "copy_alone", .run = call<&KvHandoff::copy_alone>, .outputs = no_outputs},
                          {.name = "pull_alone", .run = call<&KvHandoff::pull_alone>, .outputs = no_outputs},
                          {.name = "nccl_alone",
                           .run = call<&KvHandoff::nccl_alone>,
                           .needs = {.libraries = {Library::nccl}},
                           .outputs = no_outputs},
                          {.name = "decode_alone", .run = call<&KvHandoff::decode_alone>, .outputs = no_outputs},
                          {.name = "decode_during_chunked", .run = call<&KvHandoff::decode_during_chunked>},
                          {.name = "decode_during_pull", .run = call<&KvHandoff::decode_during_pull>},
                          {.name = "decode_during_push", .run = call<&KvHandoff::decode_during_push>}}),
    .bound = Bound::transfer,
    .tolerance = exact,
    .needs = {.gpus = 2, .peer_access = true},
    .sizes = sizes({{.name = "tokens", .full = 2048, .most = 8192},
                    {.name = "layers", .full = 32, .most = 64, .scales = false},
                    {.name = "blocks", .full = 64, .most = 4096, .scales = false}}),
    .sweep = cases({{"tokens_16", "tokens=16"},
                    {"tokens_128", "tokens=128"},
                    {"tokens_512", "tokens=512"},
                    {"tokens_2048", "tokens=2048"},
                    {"tokens_8192", "tokens=8192"},
                    {"blocks_16", "blocks=16"},
                    {"blocks_32", "blocks=32"},
                    {"blocks_64", "blocks=64"},
                    {"blocks_128", "blocks=128"},
                    {"blocks_256", "blocks=256"},
                    {"blocks_1024", "blocks=1024"}}),
    .edges = cases({{"one_token", "tokens=1,layers=2"},
                    {"before_a_page", "tokens=31,layers=2"},
                    {"after_a_page", "tokens=33,layers=2"},
                    {"last_page_part_full", "tokens=999,layers=3,blocks=7"}}),
};

}  // namespace aisp::ch15
