// SPDX-License-Identifier: Apache-2.0
#include "foreign/workload.hpp"

#include <aisp/check.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "pair/all_variants.hpp"
#include "pair/memory/memory.hpp"

namespace aisp::foreign {

Present present;

namespace {

class ForeignWorkload final : public Workload {
 public:
  ForeignWorkload(pair::Session& session, int point, const Present& from)
      : session_{session}, declaration_{from.points->at(static_cast<std::size_t>(point))}, calls_{*from.calls} {
    for (const DeclaredBuffer& declared : declaration_.buffers()) add(declared);
    std::vector<void*> places;
    for (const Buffer& buffer : session.buffers()) places.push_back(buffer.data);
    demand(calls_.placed(point, places.data()));
    if (declaration_.returns_results()) session.collect_by([this](const Variant& variant) { collect(variant); });
  }

  Cost cost() const override { return declaration_.cost(); }
  double expected_output(int output, std::size_t index) const override {
    return expected_.at(0).at(static_cast<std::size_t>(output)).at(index);
  }
  double expected_quantized(std::string_view variant, int output, std::size_t index) const override {
    return expected_.at(static_cast<std::size_t>(number_of(variant)) + 1).at(static_cast<std::size_t>(output)).at(index);
  }

  void compute_reference(Launch& /*launch*/) override {
    expected_.assign(most_variants + 1, {});
    ask_reference(-1);
    int number = 0;
    for (const Variant* variant : variants()) {
      if (variant->changes_precision) ask_reference(number);
      ++number;
    }
  }

  void run(int variant, Launch& launch) { demand(calls_.run(variant, launch.stream)); }
  void prepare(int variant, Launch& launch) { demand(calls_.prepare(variant, launch.stream)); }

 private:
  void add(const DeclaredBuffer& declared) {
    const BufferOptions options{.name = declared.name.c_str(), .unordered = declared.unordered, .constant = declared.constant};
    std::function<void(void*, std::uint64_t)> fill;
    if (declared.role != Role::output) {
      Inputs& inputs = declared.constant ? constants_ : variable_;
      fill = [this, &inputs, number = inputs.taken.size(), bytes = declared.count * declared.element_bytes](
                 void* host, std::uint64_t seed) { take(inputs, number, host, bytes, seed); };
      inputs.taken.push_back(true);
      inputs.contents.push_back(nullptr);
      session_.makers_of_inputs_keep(2 * declared.count * declared.element_bytes);  // the last ones, and a step to the next
    }
    session_.add(declared.role, declared.type, declared.element_bytes, declared.count, {}, std::move(fill), options);
  }

  // Made together, since they may belong together, but taken one by one. Whoever was taken before asks for others.
  struct Inputs {
    bool constant = false;
    std::vector<bool> taken{};
    std::vector<const void*> contents{};
  };

  void take(Inputs& inputs, std::size_t number, void* host, std::size_t bytes, std::uint64_t seed) {
    if (inputs.taken[number]) {
      demand(calls_.make_inputs(inputs.constant ? 1 : 0, seed, inputs.contents.data()));
      inputs.taken.assign(inputs.taken.size(), false);
      if (session_.on_gpu()) check(cudaDeviceSynchronize());
    }
    inputs.taken[number] = true;
    if (session_.on_gpu()) check(cudaMemcpy(host, inputs.contents[number], bytes, cudaMemcpyDefault));
    else std::memcpy(host, inputs.contents[number], bytes);
  }

  void ask_reference(int variant) {
    const std::vector<Buffer*>& results = session_.results();
    std::vector<const double*> found(results.size());
    demand(calls_.reference(variant, found.data()));
    auto& expected = expected_[static_cast<std::size_t>(variant) + 1];
    for (std::size_t k = 0; k < results.size(); ++k) expected.emplace_back(found[k], found[k] + results[k]->count);
  }

  // Overwrites returned memory that only we hold: the next run, given the same memory, then shows what it does not write. Memory
  // that the program keeps is never written, and a function that returns it is refused.
  void collect(const Variant& variant) {
    const std::vector<Buffer*>& results = session_.results();
    std::vector<const void*> found(results.size());
    demand(calls_.results(number_of(variant.name), found.data()));
    for (std::size_t k = 0; k < results.size(); ++k) {
      const Buffer& to = *results[k];
      if (found[k] == nullptr) continue;
      if (session_.on_gpu()) pair::queue_move(found[k], to.data, to.bytes(), session_.gpu_of(to), session_.launch().stream);
      else std::memcpy(to.data, found[k], to.bytes());
    }
    std::vector<std::uint8_t> ours(results.size());
    demand(calls_.copied(ours.data()));
    for (std::size_t k = 0; k < results.size(); ++k) {
      if (found[k] == nullptr || ours[k] == 0) continue;
      auto* const place = const_cast<void*>(found[k]);
      const std::size_t bytes = results[k]->bytes();
      if (session_.on_gpu())
        pair::queue_bytes(place, pair::default_poison, bytes, session_.gpu_of(*results[k]), session_.launch().stream);
      else std::memset(place, pair::default_poison, bytes);
    }
    demand(calls_.overwritten());
  }

  std::vector<const Variant*> variants() const { return pair::all_variants(session_.pair()); }
  int number_of(std::string_view name) const {
    const std::vector<const Variant*> all = variants();
    return static_cast<int>(std::ranges::find(all, name, &Variant::name) - all.begin());
  }

  void demand(int status) const {
    if (status != 0) throw std::runtime_error{calls_.trouble()};
  }

  pair::Session& session_;
  const Declaration& declaration_;
  const aisp_calls& calls_;
  Inputs variable_, constants_{.constant = true};
  std::vector<std::vector<std::vector<double>>> expected_;  // of all, then of each variant; by output
};

template <int variant>
void run_variant(Workload& workload, Launch& launch) {
  static_cast<ForeignWorkload&>(workload).run(variant, launch);
}
template <int variant>
void prepare_variant(Workload& workload, Launch& launch) {
  static_cast<ForeignWorkload&>(workload).prepare(variant, launch);
}

template <int... variant>
constexpr std::array<Method, sizeof...(variant)> runs(std::integer_sequence<int, variant...> /*all*/) {
  return {&run_variant<variant>...};
}
template <int... variant>
constexpr std::array<Method, sizeof...(variant)> prepares(std::integer_sequence<int, variant...> /*all*/) {
  return {&prepare_variant<variant>...};
}
constexpr auto all_runs = runs(std::make_integer_sequence<int, most_variants>{});
constexpr auto all_prepares = prepares(std::make_integer_sequence<int, most_variants>{});

}  // namespace

Workload* make_workload(Setup& setup) {
  auto& session = static_cast<pair::Session&>(setup);  // the harness gives no other
  const auto point =
      std::ranges::find_if(*present.points, [&](const Declaration& each) { return each.entry().pair == &session.pair(); });
  return new ForeignWorkload(session, static_cast<int>(point - present.points->begin()), present);
}

Method run_of(int variant) { return all_runs.at(static_cast<std::size_t>(variant)); }
Method prepare_of(int variant) { return all_prepares.at(static_cast<std::size_t>(variant)); }

}  // namespace aisp::foreign
