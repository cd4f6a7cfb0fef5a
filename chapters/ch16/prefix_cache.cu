// SPDX-License-Identifier: Apache-2.0
// Eight prompts that begin with the same system prompt. Prefilled one like the other, its keys and values are computed eight
// times; blocks of 16 tokens that are found by a chain of hashes are computed once, and page tables share their pages. Requests
// may share a page in the step that fills it, since each layer writes its cache before its attention reads it.
#include <aisp/libraries/cublas.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "decoder/alone.hpp"
#include "decoder/model.hpp"
#include "decoder/pages.hpp"
#include "pinned_rows.hpp"

namespace aisp::ch16 {
namespace {

using namespace decoder;
using Pages = attention::PagedCache<page_rows>;

constexpr int kv_stride = 8;  // of each request's positions, every eighth's keys and values are compared

// Whole blocks of prompts, found by a hash of their tokens and of all blocks before them. A hash alone proves nothing: a block is
// the same where its tokens are and the block before it is.
class PrefixIndex {
 public:
  struct Match {
    int last = -1;  // of the blocks found; -1: none
    int owner = -1, blocks = 0;
    std::uint64_t hash = 0;
  };

  PrefixIndex(int block, std::uint64_t hash_mask) : block_{block}, hash_mask_{hash_mask} {}

  // The longest run of blocks that the prompt begins with, and a request whose pages hold it.
  Match find(const int* prompt, int most_blocks) const {
    Match match;
    while (match.blocks < most_blocks) {
      const int* const tokens = prompt + match.blocks * block_;
      const std::uint64_t hash = chained(match.hash, tokens);
      const int following = child(match.last, hash, tokens);
      if (following < 0) break;
      match = {following, blocks_[static_cast<std::size_t>(following)].owner, match.blocks + 1, hash};
    }
    return match;
  }
  // The prompt's blocks after those that were found.
  void insert(Match match, int owner, const int* prompt, int blocks) {
    for (; match.blocks < blocks; ++match.blocks) {
      const int* const tokens = prompt + match.blocks * block_;
      match.hash = chained(match.hash, tokens);
      int following = child(match.last, match.hash, tokens);
      if (following < 0) {
        following = static_cast<int>(blocks_.size());
        blocks_.push_back({match.last, owner, tokens});
        by_hash_.emplace(match.hash, following);
      }
      match.last = following;
    }
  }

 private:
  struct Block {
    int parent, owner;
    const int* tokens;
  };

  std::uint64_t chained(std::uint64_t parent, const int* tokens) const {
    std::uint64_t hash = parent + 1;
    for (int i = 0; i < block_; ++i) {
      hash = (hash ^ static_cast<std::uint64_t>(tokens[i])) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 32;
    }
    return hash & hash_mask_;
  }
  int child(int parent, std::uint64_t hash, const int* tokens) const {
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      const Block& block = blocks_[static_cast<std::size_t>(it->second)];
      if (block.parent == parent && std::equal(tokens, tokens + block_, block.tokens)) return it->second;
    }
    return -1;
  }

  int block_;
  std::uint64_t hash_mask_;
  std::vector<Block> blocks_;
  std::unordered_multimap<std::uint64_t, int> by_hash_;
};

// The last layer's keys and values at every eighth position, through the page table; zeros beyond a prompt's end.
// blockIdx: the position, the request.
__global__ void gather_kernel(Step<Pages> step, const int* lengths, bf16* to) {
  const int request = static_cast<int>(blockIdx.y), position = static_cast<int>(blockIdx.x) * kv_stride;
  const int columns = step.model.shape.kv_columns(), head_size = step.model.shape.head_size;
  const std::size_t layer = (step.model.shape.layers - 1) * step.layer_elements,
                    first = (static_cast<std::size_t>(request) * gridDim.x + blockIdx.x) * 2 * columns;
  for (int e = static_cast<int>(threadIdx.x); e < columns; e += static_cast<int>(blockDim.x)) {
    const bool is_there = position < lengths[request];
    const std::size_t from = is_there ? layer + step.cache.at(request, e / head_size, position) + e % head_size : 0;
    to[first + e] = is_there ? step.cache.k[from] : bf16{};
    to[first + columns + e] = is_there ? step.cache.v[from] : bf16{};
  }
}

class PrefixCache final : public Workload {
 public:
  explicit PrefixCache(Setup& setup)
      : requests_{static_cast<int>(setup.size("requests"))},
        tokens_{static_cast<int>(setup.size("tokens"))},
        shared_{static_cast<int>(setup.size("shared"))},
        block_{static_cast<int>(setup.size("block"))},
        planted_{setup.size("planted") == 1},
        hash_mask_{setup.size("weak_hash") == 1 ? 1 : ~std::uint64_t{0}},
        model_{setup,
               setup.size("narrow") == 1 ? narrow(2) : layers_of_8b(2),
               {.rows = most_rows(), .chosen = requests_, .positions = tokens_, .split_rows = most_rows()}},
        lt_{setup},
        cublas_{setup},
        alone_{setup, tokens_},
        prompts_{prompts(setup, "prompts", false)},
        other_prompts_{prompts(setup, "prompts that share nothing", true)},
        lengths_{setup.input<int>(static_cast<std::size_t>(requests_), HostFill<int>{[this](std::span<int> to, std::uint64_t) {
                                    for (int r = 0; r < requests_; ++r) to[static_cast<std::size_t>(r)] = length(r);
                                  }},
                                  {.name = "lengths", .constant = true})},
        first_tokens_{setup.output<int>(static_cast<std::size_t>(requests_), {.name = "first tokens"})},
        states_{setup.output<bf16>(static_cast<std::size_t>(requests_ * model_.shape().hidden), {.name = "last states"})},
        kv_{setup.output<bf16>(static_cast<std::size_t>(requests_ * sampled() * 2 * model_.shape().kv_columns()),
                               {.name = "keys and values"})},
        k_{setup.scratch<bf16>(layer_elements() * static_cast<std::size_t>(model_.shape().layers), {.name = "keys"})},
        v_{setup.scratch<bf16>(k_.size(), {.name = "values"})},
        next_{setup.scratch<int>(1)},
        device_image_{setup.scratch<int>(image_words())},
        images_{setup.scratch<int>(2 * image_words(), {.memory = Memory::pinned})},
        pages_{requests_ * pages_for(tokens_), 16},
        table_{pages_, requests_, pages_for(tokens_)},
        uploaded_{setup.event()} {
    if (shared_ >= tokens_) throw Unsupported{"a prompt has a token of its own: `shared` is less than `tokens`"};
  }

  // The shared tokens once, the others of each prompt.
  Cost cost() const override { return cost_of(shared_); }
  Cost variant_cost(std::string_view variant) const override { return cost_of(variant == "nothing_shared" ? 0 : shared_); }
  void metrics(std::string_view, Metrics& metrics) override {
    double tokens = 0;
    for (int r = 0; r < requests_; ++r) tokens += length(r);
    metrics.report_rate("prompt_rate", tokens, "tokens/s");
    metrics.report("hit_rate", 100 * found_tokens_ / tokens, "%", Metrics::Better::higher);
  }

  // Each request alone for its token, and in float64.
  void compute_reference(Launch& launch) override {
    const Shape& s = model_.shape();
    schedule(prompts_, Reuse::none, [](const auto&) {});  // each has pages of its own
    check(cudaMemcpyAsync(device_image_, table_.entries().data(), table_.entries().size_bytes(), cudaMemcpyHostToDevice,
                          launch.stream));
    expected_tokens_.clear(), expected_states_.clear();
    expected_kv_.assign(kv_.size(), 0);
    for (int r = 0; r < requests_; ++r) {
      const int rows = length(r);
      std::vector<int> prompt;
      for (int i = 0; i < rows; ++i) prompt.push_back(prompts_.host(static_cast<std::size_t>(first_of(r) + i)));
      const auto make = [this](const Batch& batch) { return step(batch, next_); };
      expected_tokens_.push_back(generate_alone(launch.stream, s, alone_, next_, make, r, prompt, 1).back());
      const reference::Results results =
          reference::forward(*cublas_, launch.stream, s, model_.weights(), prompt, {&rows, 1}, true);
      expected_states_.insert(expected_states_.end(), results.normed.end() - s.hidden, results.normed.end());
      for (int position = 0; position < rows; position += kv_stride)
        std::copy_n(results.qkv.back().begin() + position * s.qkv_columns() + s.q_columns(), 2 * s.kv_columns(),
                    expected_kv_.begin() + (r * sampled() + position / kv_stride) * 2 * s.kv_columns());
    }
  }
  double expected_output(int output, std::size_t i) const override {
    return output == 0 ? expected_tokens_[i] : output == 1 ? expected_states_[i] : expected_kv_[i];
  }

  void prepare_full(Launch& launch) { prepare(launch, prompts_, Reuse::none); }
  void prepare_blocks(Launch& launch) { prepare(launch, prompts_, Reuse::of_earlier_steps); }
  void prepare_same_step(Launch& launch) { prepare(launch, prompts_, Reuse::of_the_same_step); }
  void prepare_nothing(Launch& launch) { prepare(launch, other_prompts_, Reuse::of_earlier_steps); }
  void full_prefill(Launch& launch) { serve(launch, prompts_, Reuse::none); }
  void block_hash(Launch& launch) { serve(launch, prompts_, Reuse::of_earlier_steps); }
  void same_step(Launch& launch) { serve(launch, prompts_, Reuse::of_the_same_step); }
  void nothing_shared(Launch& launch) { serve(launch, other_prompts_, Reuse::of_earlier_steps); }
  // All pages become NaN.
  void reset(Launch& launch) {
    check(cudaMemsetAsync(k_, 0xff, k_.bytes(), launch.stream));
    check(cudaMemsetAsync(v_, 0xff, v_.bytes(), launch.stream));
  }

 private:
  enum class Reuse { none, of_earlier_steps, of_the_same_step };

  int most_rows() const { return requests_ * tokens_; }
  int sampled() const { return (tokens_ + kv_stride - 1) / kv_stride; }
  int first_of(int request) const { return request * tokens_; }
  // Planted: one that is the beginning of the first, and one of a single token.
  int length(int request) const {
    return !planted_ ? tokens_ : request % 8 == 2 ? std::max(shared_, 1) : request % 8 == 6 ? 1 : tokens_;
  }
  // The first `shared` tokens of each request are common and the others its own. Planted: the first prompt a second time, one
  // that has all blocks but the first of it, one whose blocks are all the same, and one that parts within a block.
  bool is_common(int request, int position) const {
    if (!planted_) return position < shared_;
    switch (request % 8) {
      case 1: return position < shared_;
      case 4: return position >= block_;
      case 6: return false;
      case 7: return position < shared_ + 7;
      default: return true;
    }
  }
  Input<int> prompts(Setup& setup, const char* name, bool all_own) const {
    const HostFill<int> fill{[this, all_own](std::span<int> tokens, std::uint64_t seed) {
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int request = static_cast<int>(i) / tokens_, position = static_cast<int>(i) % tokens_;
        const bool common = !all_own && is_common(request, position);
        const std::uint64_t stream = random_bits(seed, common ? 0 : static_cast<std::uint64_t>(request) + 1);
        const bool all_equal = planted_ && request % 8 == 5;
        tokens[i] = static_cast<int>(random_bits(stream, all_equal ? 0 : static_cast<std::uint64_t>(position)) %
                                     static_cast<std::uint64_t>(model_.shape().vocabulary()));
      }
    }};
    return setup.input<int>(static_cast<std::size_t>(most_rows()), fill, {.name = name, .memory = Memory::pinned});
  }
  Cost cost_of(int shared) const {
    const Shape& s = model_.shape();
    double rows = 0, keys = 0;
    for (int r = 0; r < requests_; ++r) {
      const double from = r == 0 ? 0 : std::min(shared, length(r) - 1), end = length(r);
      rows += end - from;
      keys += (end * (end + 1) - from * (from + 1)) / 2;
    }
    return {.flops = 2 * rows * s.weights() + 4 * keys * s.q_columns() * s.layers,
            .math = Math::bf16,
            .bytes = 2 * s.weights() + rows * s.kv_bytes() * s.layers};
  }
  std::size_t layer_elements() const {
    return static_cast<std::size_t>(requests_ * pages_for(tokens_) * page_rows) *
           static_cast<std::size_t>(model_.shape().kv_columns());
  }
  // The page table, and after it a step's rows.
  std::size_t table_words() const { return static_cast<std::size_t>(requests_ * pages_for(tokens_)); }
  std::size_t image_words() const { return table_words() + BatchMemory::words(most_rows()); }
  Step<Pages> step(const Batch& batch, int* next) const {
    const Shape& s = model_.shape();
    const auto head = static_cast<std::size_t>(s.head_size * page_rows);
    return {model_.model(),
            batch,
            {k_, v_, static_cast<std::size_t>(s.head_size), head, head * static_cast<std::size_t>(s.kv_heads), device_image_,
             table_.stride()},
            layer_elements(),
            next};
  }

  // Gives each request its pages, and calls run_step(spans) for what is to be computed: with blocks of earlier steps the first
  // request fills the cache in a step of its own, else there is one step.
  template <class RunStep>
  void schedule(const int* prompts, Reuse reuse, const RunStep& run_step) {
    for (int r = 0; r < requests_; ++r) table_.release(r);
    PrefixIndex index{block_, hash_mask_};
    found_tokens_ = 0;
    std::vector<Span> spans;
    for (int r = 0; r < requests_; ++r) {
      const int* const prompt = prompts + first_of(r);
      PrefixIndex::Match match;
      if (reuse != Reuse::none) {
        match = index.find(prompt, (length(r) - 1) / block_);  // the last token is computed in any case
        if (match.blocks > 0) table_.share(r, match.owner, match.blocks * block_ / page_rows);
        if (reuse == Reuse::of_the_same_step || r == 0) index.insert(match, r, prompt, length(r) / block_);
      }
      table_.grow(r, length(r));
      const int found = match.blocks * block_;
      found_tokens_ += found;
      spans.push_back({r, found, length(r) - found});
      if (r + 1 < requests_ && (reuse != Reuse::of_earlier_steps || r > 0)) continue;
      run_step(spans);
      spans.clear();
    }
  }
  void prepare(Launch& launch, const int* prompts, Reuse reuse) {
    model_.clear(launch.stream);
    schedule(prompts, reuse, [&](const std::vector<Span>& spans) {
      const Arranged arranged{model_.shape(), spans};
      model_.tune(*lt_, launch.stream, arranged.rows(), static_cast<int>(spans.size()));
    });
  }
  void serve(Launch& launch, const int* prompts, Reuse reuse) {
    check(cudaEventSynchronize(uploaded_));  // then the images may be written again
    std::size_t steps = 0;
    schedule(prompts, reuse,
             [&](const std::vector<Span>& spans) { run_step(launch, prompts, spans, images_ + steps++ * image_words()); });
    check(cudaEventRecord(uploaded_, launch.stream));
    launch(gather_kernel, {dim3{static_cast<unsigned>(sampled()), static_cast<unsigned>(requests_)}, 256}, step({}, nullptr),
           lengths_.get(), kv_.get());
  }
  void run_step(Launch& launch, const int* prompts, const std::vector<Span>& spans, int* image) {
    const Shape& s = model_.shape();
    const Arranged arranged{s, spans};
    const int rows = arranged.rows(), first = spans.front().sequence;
    std::ranges::copy(table_.entries(), image);
    write_rows(image + table_words(), rows, arranged);
    int* tokens = BatchMemory::over(image + table_words(), rows).tokens;
    std::vector<int> requests;
    for (const Span& span : spans) {
      tokens = std::copy_n(prompts + first_of(span.sequence) + span.first_position, span.tokens, tokens);
      requests.push_back(span.sequence);
    }
    check(cudaMemcpyAsync(device_image_, image, (table_words() + BatchMemory::words(rows)) * sizeof(int), cudaMemcpyHostToDevice,
                          launch.stream));
    if (first == 0) launch.mark("scheduled");
    Batch batch = BatchMemory::over(device_image_ + table_words(), rows);
    BatchMemory::describe(batch, s, arranged);
    run(step(batch, first_tokens_ + first), launch.stream);
    check(cudaMemcpyAsync(states_ + first * s.hidden, model_.model().workspace.chosen,
                          spans.size() * static_cast<std::size_t>(s.hidden) * sizeof(bf16), cudaMemcpyDeviceToDevice,
                          launch.stream));
    launch.tokens(requests);
  }

  int requests_, tokens_, shared_, block_;
  bool planted_;
  std::uint64_t hash_mask_;
  Buffers model_;
  Opened<CublasLt> lt_;
  Opened<Cublas> cublas_;
  BatchMemory alone_;
  Input<int> prompts_, other_prompts_, lengths_;
  Output<int> first_tokens_;
  Output<bf16> states_, kv_;
  Scratch<bf16> k_, v_;
  Scratch<int> next_, device_image_, images_;
  PageAllocator pages_;
  PageTable table_;
  cudaEvent_t uploaded_;
  double found_tokens_ = 0;
  std::vector<int> expected_tokens_;
  std::vector<double> expected_states_, expected_kv_;
};

}  // namespace

extern constinit const Pair prefix_cache{
    .teaches = "prompts that begin alike have the same keys and values: blocks found by a chain of hashes are computed once",
    .lesson = "block_hash",
    .make = make<PrefixCache>,
    .baseline = {.name = "full_prefill",
                 .run = call<&PrefixCache::full_prefill>,
                 .prepare = call<&PrefixCache::prepare_full>,
                 .reset = call<&PrefixCache::reset>},
    .optimized = variants({{.name = "block_hash",
                            .run = call<&PrefixCache::block_hash>,
                            .prepare = call<&PrefixCache::prepare_blocks>,
                            .reset = call<&PrefixCache::reset>,
                            .same_bits_as = "full_prefill"},
                           {.name = "same_step",
                            .run = call<&PrefixCache::same_step>,
                            .prepare = call<&PrefixCache::prepare_same_step>,
                            .reset = call<&PrefixCache::reset>,
                            .same_bits_as = "full_prefill"}}),
    // Other prompts, which share nothing: what hashes, lookups and a first step apart cost.
    .controls = variants({{.name = "nothing_shared",
                           .run = call<&PrefixCache::nothing_shared>,
                           .prepare = call<&PrefixCache::prepare_nothing>,
                           .reset = call<&PrefixCache::reset>,
                           .outputs = no_outputs}}),
    .bound = Bound::compute,
    // Tokens are those of each request alone. States, keys and values are rounded to bf16 some ten times on their way.
    .tolerance = per_output({exact, within(1.2e-2), within(8e-3)}),
    .needs = {.min_sm = 90, .libraries = {Library::cublas, Library::cublaslt}},
    .start = Start::immediate,  // the host looks up and makes tables before a step
    .sizes = sizes({{.name = "requests", .full = 8, .most = 16, .scales = false},
                    {.name = "tokens", .full = 1024, .most = 1024, .scales = false},
                    {.name = "shared", .full = 896, .least = 0, .most = 1023, .scales = false},
                    {.name = "block", .full = 16, .multiple = 16, .most = 256, .scales = false},
                    option("narrow"),
                    option("planted"),
                    option("weak_hash")}),
    .sweep = cases({{"shared_0", "shared=0"},
                    {"shared_256", "shared=256"},
                    {"shared_512", "shared=512"},
                    {"shared_768", "shared=768"},
                    {"shared_896", "shared=896"},
                    {"shared_1008", "shared=1008"},
                    {"block_16", "shared=1000,block=16"},
                    {"block_64", "shared=1000,block=64"},
                    {"block_256", "shared=1000,block=256"}}),
    .edges = cases({{"planted", "narrow=1,planted=1,tokens=300,shared=160"},
                    {"equal_hashes", "narrow=1,planted=1,tokens=300,shared=160,weak_hash=1"},
                    {"large_blocks", "narrow=1,planted=1,tokens=300,shared=192,block=64"},
                    {"all_but_one", "narrow=1,shared=1023"},
                    {"one_request", "narrow=1,requests=1,tokens=77,shared=16"}}),
    .reference_samples = 2048,
};

}  // namespace aisp::ch16
