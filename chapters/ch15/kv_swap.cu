// SPDX-License-Identifier: Apache-2.0
// A request gives up its pages of the KV cache to another one, and gets others later. Dropped, its keys and values are computed a
// second time, which is a prefill. Moved to the host's memory and back they cross PCIe twice, for less; but page by page that is
// a call and a command for each of many small copies. A kernel that packs the pages makes one transfer of them, each way.
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/model.hpp"
#include "serving_rows.cuh"

namespace aisp::ch15 {
namespace {

constexpr unsigned threads = 256;

// Pages of a sequence in all layers, keys and values, and the same pages one after the other: [layer][keys, values][page].
struct Moved {
  uint4 *k, *v, *packed;
  const int* table;
  unsigned page_packets;
  std::size_t layer_packets;
};
// blockIdx: the page of the sequence; the layer, twice, and 1 for values.
template <bool packs>
__global__ __launch_bounds__(threads) void move_pages_kernel(Moved pages) {
  uint4* const packed = pages.packed + (std::size_t{blockIdx.y} * gridDim.x + blockIdx.x) * pages.page_packets;
  uint4* const page = (blockIdx.y % 2 == 0 ? pages.k : pages.v) + blockIdx.y / 2 * pages.layer_packets +
                      static_cast<std::size_t>(pages.table[blockIdx.x]) * pages.page_packets;
  const uint4* const from = packs ? page : packed;
  uint4* const to = packs ? packed : page;
  constexpr unsigned at_once = 8;
  for (unsigned first = threadIdx.x; first < pages.page_packets; first += threads * at_once) {
    uint4 kept[at_once];
#pragma unroll
    for (unsigned i = 0; i < at_once; ++i)
      if (first + i * threads < pages.page_packets) kept[i] = __ldcs(from + first + i * threads);
#pragma unroll
    for (unsigned i = 0; i < at_once; ++i)
      if (first + i * threads < pages.page_packets) __stcs(to + first + i * threads, kept[i]);
  }
}
class KvSwap final : public Workload {
 public:
  explicit KvSwap(Setup& setup)
      : tokens_{static_cast<int>(setup.size("tokens")) - 1},
        copy_bytes_{setup.size("copy_kib") << 10},
        model_{setup,
               setup.size("narrow") == 1 ? narrow(4) : layers_of_8b(4),
               {.rows = tokens_, .chosen = 1, .positions = tokens_, .split_rows = std::min(tokens_, 640)}},
        lt_{setup},
        cublas_{setup},
        memory_{setup, tokens_},
        recomputed_{setup, tokens_},
        prompt_{setup.input<int>(size(tokens_), traced_tokens(Trace::planted, tokens_, model_.shape().vocabulary()),
                                 {.name = "tokens", .constant = true})},
        others_{setup.input<bf16>(packed_elements(), normal(0, 1), {.name = "keys and values of the other request"})},
        allocator_{3 * pages_for(tokens_), 15},
        table_{allocator_, 2, pages_for(tokens_)},
        entries_{setup.input<int>(table_.entries().size(), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                    std::ranges::copy(table_.entries(), to.begin());
                                  }},
                                  {.name = "page table", .constant = true})},
        kv_{setup.output<bf16>(kv_rows() * size(tokens_) * columns(), {.name = "keys and values after the return"})},
        k_{setup.scratch<bf16>(layer_elements() * layers(), {.name = "pages of keys"})},
        v_{setup.scratch<bf16>(layer_elements() * layers(), {.name = "pages of values"})},
        home_{setup.scratch<bf16>(packed_elements(), {.name = "keys and values before"})},
        packed_{setup.scratch<bf16>(packed_elements(), {.name = "packed pages"})},
        pinned_{setup.scratch<bf16>(packed_elements(), {.name = "pinned memory", .memory = Memory::pinned})},
        pageable_{setup.scratch<bf16>(packed_elements(), {.name = "pageable memory", .memory = Memory::pageable})},
        next_{setup.scratch<int>(1)} {
    table_.grow(before, tokens_), table_.grow(after, tokens_);
  }

  // Out, and then in again, over PCIe; or a prefill.
  Cost cost() const override {
    const double bytes = static_cast<double>(packed_.bytes());
    return in_turn({{.device_to_host = bytes}, {.host_to_device = bytes}});
  }
  Cost variant_cost(std::string_view variant) const override {
    if (variant != "recompute") return cost();
    return prefill_cost(model_.shape(), tokens_);
  }
  void metrics(std::string_view variant, Metrics& metrics) override {
    metrics.report("over_pcie", variant == "recompute" ? 0 : 2 * static_cast<double>(packed_.bytes()) / 1e6, "MB",
                   Metrics::Better::lower);
  }

  // The sequence from its first token on.
  void compute_reference(Launch& launch) override {
    std::vector<int> tokens;
    for (int i = 0; i < tokens_; ++i) tokens.push_back(prompt_.host(size(i)));
    reference_ =
        reference::forward(*cublas_, launch.stream, model_.shape(), model_.weights(), tokens, std::array{tokens_}, true).qkv;
  }
  double expected(std::size_t i) const override {
    const Shape& s = model_.shape();
    const std::size_t kind = i / columns() / size(tokens_), position = i / columns() % size(tokens_);
    return reference_[kind / 2][position * size(s.qkv_columns()) + size(s.q_columns()) + kind % 2 * columns() + i % columns()];
  }

  // The sequence is computed in two parts, as a prompt and what came after it; recompute takes it as one.
  void prepare(Launch& launch) {
    model_.clear(launch.stream);
    model_.tune(*lt_, launch.stream, tokens_, 1);
    const int prompt = (tokens_ + 1) / 2;
    run(step(upload(launch, memory_, before, 0, prompt)), launch.stream);
    if (prompt < tokens_) run(step(upload(launch, memory_, before, prompt, tokens_ - prompt)), launch.stream);
    move<true>(launch, before, home_);
    whole_ = upload(launch, recomputed_, after, 0, tokens_);
  }
  void reset(Launch& launch) {
    for (const Scratch<bf16>* each : {&packed_, &pinned_, &k_, &v_})
      check(cudaMemsetAsync(*each, 0xFF, each->bytes(), launch.stream));
    std::fill_n(pageable_.get(), pageable_.size(), bf16{});
    move<false>(launch, before, home_);
  }

  void recompute(Launch& launch) {
    evict_and_return(
        launch, [] {}, [&] { run(step(whole_), launch.stream); });
  }
  void swap_pages(Launch& launch) {
    evict_and_return(
        launch, [&] { for_copies(before, [&](bf16* page, bf16* host) { copy(launch, host, page); }); },
        [&] { for_copies(after, [&](bf16* page, bf16* host) { copy(launch, page, host); }); });
  }
  void swap_batch(Launch& launch) {
    evict_and_return(
        launch, [&] { copy_batch(launch, before, true); }, [&] { copy_batch(launch, after, false); });
  }
  void swap_packed(Launch& launch) { swap_through(launch, pinned_); }
  void swap_pageable(Launch& launch) { swap_through(launch, pageable_); }
  void swap_direct(Launch& launch) {
    evict_and_return(
        launch, [&] { move<true>(launch, before, pinned_); }, [&] { move<false>(launch, after, pinned_); });
  }

 private:
  enum Place { before, after };  // rows of the table

  std::size_t layers() const { return size(model_.shape().layers); }
  std::size_t columns() const { return size(model_.shape().kv_columns()); }
  std::size_t kv_rows() const { return 2 * layers(); }
  std::size_t page_elements() const { return page_rows * columns(); }
  std::size_t layer_elements() const { return size(3 * pages_for(tokens_)) * page_elements(); }
  std::size_t packed_elements() const { return kv_rows() * size(pages_for(tokens_)) * page_elements(); }
  Step<Pages> step(const Batch& batch) const {
    const std::size_t head = size(model_.shape().head_size);
    return {model_.model(),
            batch,
            {k_, v_, head, head * page_rows, page_elements(), entries_, table_.stride()},
            layer_elements(),
            next_};
  }

  // The pages go to another request as soon as they are free.
  template <class Evict, class Return>
  void evict_and_return(Launch& launch, const Evict& evict, const Return& come_back) {
    evict();
    launch.mark("pages_free");
    move<false>(launch, before, const_cast<bf16*>(others_.get()));
    come_back();
    launch.mark("returned");
    launch(gather_kernel, {dim3{static_cast<unsigned>(tokens_), static_cast<unsigned>(kv_rows())}, 128}, step({}), after,
           kv_.get());
  }
  void swap_through(Launch& launch, const Scratch<bf16>& host) {
    evict_and_return(
        launch,
        [&] {
          move<true>(launch, before, packed_);
          check(cudaMemcpyAsync(host, packed_, packed_.bytes(), cudaMemcpyDeviceToHost, launch.stream));
        },
        [&] {
          check(cudaMemcpyAsync(packed_, host, packed_.bytes(), cudaMemcpyHostToDevice, launch.stream));
          move<false>(launch, after, packed_);
        });
  }
  template <bool packs>
  void move(Launch& launch, Place place, bf16* packed) {
    launch(move_pages_kernel<packs>, {dim3{static_cast<unsigned>(pages_for(tokens_)), static_cast<unsigned>(kv_rows())}, threads},
           Moved{reinterpret_cast<uint4*>(k_.get()), reinterpret_cast<uint4*>(v_.get()), reinterpret_cast<uint4*>(packed),
                 entries_.get() + place * table_.stride(), static_cast<unsigned>(page_elements() / 8), layer_elements() / 8});
  }
  Batch upload(Launch& launch, const BatchMemory& memory, Place place, int first, int count) {
    const Span span{place, first, count, false};
    const Batch batch = memory.upload(launch.stream, model_.shape(), Arranged{model_.shape(), std::array{span}});
    check(
        cudaMemcpyAsync(batch.tokens, prompt_.get() + first, size(count) * sizeof(int), cudaMemcpyDeviceToDevice, launch.stream));
    return batch;
  }
  // Each page in pieces of copy_bytes: use(in the page, in pinned memory).
  template <class Use>
  void for_copies(Place place, const Use& use) {
    const std::size_t piece = std::min(copy_bytes_ / sizeof(bf16), page_elements());
    std::size_t packed = 0;
    for (std::size_t kind = 0; kind < kv_rows(); ++kind)
      for (int page = 0; page < pages_for(tokens_); ++page)
        for (std::size_t at = 0; at < page_elements(); at += piece, packed += piece)
          use((kind % 2 == 0 ? k_ : v_) + kind / 2 * layer_elements() + size(table_.page(place, page)) * page_elements() + at,
              pinned_ + packed);
  }
  void copy(Launch& launch, bf16* to, const bf16* from) const {
    check(cudaMemcpyAsync(to, from, std::min(copy_bytes_, page_elements() * sizeof(bf16)), cudaMemcpyDefault, launch.stream));
  }
  void copy_batch(Launch& launch, Place place, bool out) {
    pages_.clear(), hosts_.clear();
    for_copies(place, [&](bf16* page, bf16* host) { pages_.push_back(page), hosts_.push_back(host); });
    sizes_.assign(pages_.size(), std::min(copy_bytes_, page_elements() * sizeof(bf16)));
    const std::vector<const void*> from =
        out ? std::vector<const void*>(pages_.begin(), pages_.end()) : std::vector<const void*>(hosts_.begin(), hosts_.end());
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;  // the attributes are those of all copies from this one on
    check(cudaMemcpyBatchAsync((out ? hosts_ : pages_).data(), from.data(), sizes_.data(), sizes_.size(), &attributes, &first, 1,
                               launch.stream));
  }

  int tokens_;  // that are cached
  std::size_t copy_bytes_;
  Buffers model_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory memory_, recomputed_;
  Input<int> prompt_;
  Input<bf16> others_;
  PageAllocator allocator_;
  PageTable table_;
  Input<int> entries_;
  Output<bf16> kv_;
  Scratch<bf16> k_, v_, home_, packed_, pinned_, pageable_;
  Scratch<int> next_;
  Batch whole_;
  std::vector<void*> pages_, hosts_;
  std::vector<std::size_t> sizes_;
  std::vector<std::vector<double>> reference_;
};

}  // namespace

extern constinit const Pair kv_swap{
    .teaches =
        "keys and values that were dropped cost a second prefill; packed into one transfer each way they cost a part of it",
    .lesson = "swap_packed",
    .make = make<KvSwap>,
    .baseline = {.name = "recompute",
                 .run = call<&KvSwap::recompute>,
                 .prepare = call<&KvSwap::prepare>,
                 .reset = call<&KvSwap::reset>},
    .optimized = variants({{.name = "swap_pages",
                            .run = call<&KvSwap::swap_pages>,
                            .prepare = call<&KvSwap::prepare>,
                            .reset = call<&KvSwap::reset>,
                            .same_bits_as = "recompute"},
                           {.name = "swap_batch",
                            .run = call<&KvSwap::swap_batch>,
                            .prepare = call<&KvSwap::prepare>,
                            .reset = call<&KvSwap::reset>,
                            .needs = {.driver = 13000},
                            .same_bits_as = "recompute"},
                           {.name = "swap_packed",
                            .run = call<&KvSwap::swap_packed>,
                            .prepare = call<&KvSwap::prepare>,
                            .reset = call<&KvSwap::reset>,
                            .same_bits_as = "recompute"},
                           {.name = "swap_direct",
                            .run = call<&KvSwap::swap_direct>,
                            .prepare = call<&KvSwap::prepare>,
                            .reset = call<&KvSwap::reset>,
                            .same_bits_as = "recompute"}}),
    // The same as swap_packed through memory that the copy engine cannot address.
    .controls = variants({{.name = "swap_pageable",
                           .run = call<&KvSwap::swap_pageable>,
                           .prepare = call<&KvSwap::prepare>,
                           .reset = call<&KvSwap::reset>,
                           .same_bits_as = "recompute"}}),
    .bound = Bound::transfer,
    // Keys and values of the fourth layer have been rounded to bf16 some twenty times on their way: 1.6e-3 times the root of
    // twenty, and half as much again.
    .tolerance = within(1.1e-2),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // calls of the host are a subject
    .timeline = true,
    .sizes = sizes({{.name = "tokens", .full = 2048, .least = 2, .most = 4096, .scales = false},
                    {.name = "copy_kib", .full = 32, .least = 4, .most = 32, .scales = false},
                    option("narrow")}),
    .sweep = cases({{"tokens_64", "tokens=64"},
                    {"tokens_256", "tokens=256"},
                    {"tokens_1024", "tokens=1024"},
                    {"tokens_4096", "tokens=4096"},
                    {"copies_4_kib", "copy_kib=4"},
                    {"copies_8_kib", "copy_kib=8"},
                    {"copies_16_kib", "copy_kib=16"}}),
    .edges = cases({{"one_row", "tokens=2,narrow=1"}, {"one_page", "tokens=17,narrow=1"}, {"tail", "tokens=531,narrow=1"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch15
