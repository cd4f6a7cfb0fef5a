// SPDX-License-Identifier: Apache-2.0
#include "pair/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "pair/all_variants.hpp"
#include "pair/sizes.hpp"

namespace aisp::pair {
namespace {

// One step of E4M3 is an eighth of the value, so even a wrong result may be this near.
constexpr double most_code_steps = 4;
constexpr double loosest_element = 16 * loosest_relative_l2;  // as within() sets it

constexpr std::size_t longest_name = 128;  // as results may have, evidence::is_plain

// Whether a name is safe in file names, on command lines and in parsed text.
bool good_name(std::string_view name) {
  const auto letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto fits = [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '_'; };
  return !name.empty() && name.size() <= longest_name && letter(name.front()) && std::ranges::all_of(name, fits);
}

class Faults {
 public:
  explicit Faults(const Entry& entry) : entry_{entry}, pair_{*entry.pair} {}

  std::vector<std::string> find() {
    check_pair();
    check_names(all_variants(pair_), "variants");
    for (const Variant* variant : all_variants(pair_)) check_variant(*variant);
    check_lesson();
    check_steps();
    check_not_run();
    check_outputs();
    std::vector<const Size*> sizes;
    for (const Size& size : pair_.sizes) sizes.push_back(&size);
    check_names(sizes, "sizes");
    std::vector<const Case*> cases;
    for (const Case& each : pair_.sweep) cases.push_back(&each);
    check_names(cases, "cases of the sweep");
    for (const Case* each : cases) check_case(*each, "case", "sweep");
    std::vector<const Case*> edges;
    for (const Case& each : pair_.edges) edges.push_back(&each);
    check_names(edges, "edges");
    for (const Case* each : edges) check_case(*each, "edge", "edges");
    return std::move(found_);
  }

 private:
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    found_.push_back(fmt::format(text, std::forward<Arguments>(arguments)...));
  }

  void check_pair() {
    for (const auto& [what, name] : {std::pair{"name", entry_.name}, std::pair{"group", entry_.chapter}})
      if (!good_name(name))
        add("its {} is '{}'; it begins with a lower-case letter and goes on with those, digits and underscores, {} in all", what,
            base::one_line(std::string{name}, 40), longest_name);
    if (pair_.teaches.empty()) add(".teaches is empty; it is one sentence that says what the pair shows");
    if (pair_.teaches.ends_with('.')) add(".teaches ends with a full stop; it is one sentence without");
    if (pair_.make == nullptr) add(".make is missing; it is make<YourWorkload>");
    check_device();
    for (const Tolerance& each : pair_.tolerance) check_tolerance(each, ".tolerance");
    check_needs(pair_.needs, ".needs");
    const Overrides& own = pair_.overrides;
    for (const double seconds : {own.setup_seconds, own.warmup_seconds, own.measurement_seconds})
      if (!(std::isfinite(seconds) && seconds >= 0)) add(".overrides sets a limit of {} s", seconds);
    if (own.iterations < 0 || own.warmup < 0) add(".overrides sets a negative number of rounds");
    if (pair_.reference_samples == 0) add(".reference_samples is 0, so nothing would be compared with the reference");
  }

  // Checks the device against the file's extension, which chooses the compiler.
  void check_device() {
    if (entry_.source.ends_with(".cpp") && pair_.device != Device::host)
      add("a .cpp file holds a host pair: set .device = Device::host, or rename it to .cu");
    if (entry_.source.ends_with(".cu") && pair_.device != Device::gpu)
      add("a .cu file holds a GPU pair: leave .device out, or rename it to .cpp");
  }

  template <class Named>
  void check_names(const std::vector<const Named*>& all, std::string_view what) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!good_name(all[i]->name))
        add("among its {} is '{}'; a name begins with a lower-case letter and goes on with those, digits and underscores, {} in "
            "all",
            what, base::one_line(std::string{all[i]->name}, 40), longest_name);
      const auto same = [&](const Named* other) { return other->name == all[i]->name; };
      const auto before = all.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find_if(all.begin(), before, same) != before) add("two of its {} are called '{}'", what, all[i]->name);
    }
  }

  void check_variant(const Variant& variant) {
    if (variant.run == nullptr) add("'{}' has no .run", variant.name);
    for (const Tolerance& each : variant.tolerance) check_tolerance(each, fmt::format(".tolerance of '{}'", variant.name));
    check_same_bits(variant);
    check_set(variant);
    if (variant.kernels.registers < 0 || variant.kernels.local_at_least < 0)
      add(".kernels of '{}' limits something to less than nothing", variant.name);
    if (variant.kernels.local_bytes >= 0 && variant.kernels.local_at_least > variant.kernels.local_bytes)
      add(".kernels of '{}' asks for more local memory than it allows", variant.name);
    check_needs(variant.needs, fmt::format(".needs of '{}'", variant.name));
  }

  void check_same_bits(const Variant& variant) {
    if (variant.same_bits_as.empty()) return;
    const std::vector<const Variant*> all = all_variants(pair_);
    const auto own = std::ranges::find(all, &variant);
    const auto named = std::ranges::find(all.begin(), own, variant.same_bits_as, &Variant::name);
    if (named == own)
      add("'{}' has the .same_bits_as '{}', which is no variant declared before it", variant.name,
          base::one_line(std::string{variant.same_bits_as}, 40));
    else if (!variant.deterministic || !(*named)->deterministic)
      add("'{}' has the .same_bits_as '{}', and one of them has other bits in every run", variant.name, variant.same_bits_as);
    else if (variant.outputs == no_outputs || (*named)->outputs == no_outputs)
      add("'{}' has the .same_bits_as '{}', and one of them writes no outputs", variant.name, variant.same_bits_as);
  }

  void check_set(const Variant& variant) {
    const std::vector<const Variant*> all = all_variants(pair_);
    for (const std::string_view member : variant.best_of)
      if (!member.empty() && (member == variant.name || std::ranges::find(all, member, &Variant::name) == all.end()))
        add("'{}' has '{}' in its .best_of, which is no other variant of the pair", variant.name,
            base::one_line(std::string{member}, 40));
  }

  void check_lesson() {
    const auto named = [&](const Variant& variant) { return variant.name == pair_.lesson; };
    if (pair_.lesson.empty() && pair_.optimized.size() > 1)
      add(".lesson is empty; it names the one of the {} optimized variants that shows what .teaches says",
          pair_.optimized.size());
    if (!pair_.lesson.empty() && std::ranges::none_of(pair_.optimized, named))
      add(".lesson is '{}', which is none of the optimized variants", base::one_line(std::string{pair_.lesson}, 40));
  }

  void check_steps() {
    std::vector<std::string_view> before{pair_.baseline.name};
    for (const Variant& step : pair_.optimized) {
      if (!step.gains_over.empty() && std::ranges::find(before, step.gains_over) == before.end())
        add("'{}' .gains_over '{}', which is neither the baseline nor a step before it", step.name,
            base::one_line(std::string{step.gains_over}, 40));
      before.push_back(step.name);
    }
    for (const Variant* variant : all_variants(pair_))
      if (!variant->gains_over.empty() && !is_step(*variant))
        add("'{}' has .gains_over, but is no step of .optimized", variant->name);
  }

  // The baseline and the lesson's variant must be ones that somebody has run.
  void check_not_run() {
    for (const Variant* variant : all_variants(pair_))
      if (variant->not_run && (!is_step(*variant) || variant->name == lesson_of(pair_)))
        add("'{}' is .not_run; that is for optimized variants other than the lesson", variant->name);
  }

  bool is_step(const Variant& variant) const {
    return std::ranges::any_of(pair_.optimized, [&](const Variant& step) { return &step == &variant; });
  }

  // A variant without valid outputs cannot be compared, so no speedup may be claimed for it.
  void check_outputs() {
    const auto is_control = [&](const Variant& variant) {
      return std::ranges::any_of(pair_.controls, [&](const Variant& control) { return &control == &variant; });
    };
    for (const Variant* variant : all_variants(pair_))
      if (variant->outputs == no_outputs && !is_control(*variant))
        add("'{}' writes none of the outputs; only a control may", variant->name);
  }

  void check_tolerance(const Tolerance& tolerance, std::string_view what) {
    if (tolerance.reduction < 1) add("{} is of a sum of {} terms", what, tolerance.reduction);
    if (tolerance.kind == Tolerance::Kind::codes) check_steps_of(tolerance, what);
    if (tolerance.kind != Tolerance::Kind::limits) return;
    check_limit(tolerance.relative_l2, loosest_relative_l2, "relative L2", what);
    check_limit(tolerance.element, loosest_element, "single elements", what);
  }

  void check_steps_of(const Tolerance& tolerance, std::string_view what) {
    if (!(tolerance.most_steps >= 1 && tolerance.most_steps <= most_code_steps))
      add("{} allows {:g} steps; 1 to {:g} are possible, and `exact` allows none", what, tolerance.most_steps, most_code_steps);
    if (!(tolerance.share > 0 && tolerance.share <= 1)) add("{} is of a share of {:g} of the elements", what, tolerance.share);
  }

  void check_limit(double limit, double loosest, std::string_view of, std::string_view what) {
    if (!(limit > 0)) add("{} limits {} to {}; use `exact` where nothing may differ", what, of, limit);
    else if (limit > loosest)
      add("{} limits {} to {:g}, which a wrong result would keep; {:g} is the most", what, of, limit, loosest);
  }

  void check_needs(const Needs& needs, std::string_view what) {
    if (needs.gpus < 1 || needs.cpus < 0 || needs.min_sm < 0 || needs.max_sm < 0 || needs.driver < 0)
      add("{} asks for a negative amount, or for no GPU", what);
    const bool of_pair = &needs == &pair_.needs;
    if (needs.ranks.least < 1 || needs.ranks.most < needs.ranks.least || needs.ranks.most > most_ranks)
      add("{} asks for {} to {} ranks: they are 1 to {}, the least first", what, needs.ranks.least, needs.ranks.most, most_ranks);
    if (needs.ranks.most > 1 && (!of_pair || needs.gpus > 1))
      add("{} asks for ranks{}", what, of_pair ? " of several GPUs; a rank has one" : "; only a pair has them");
    if (pair_.device == Device::host && (needs.gpus > 1 || needs.peer_access)) add("{} asks for GPUs, for a host pair", what);
  }

  void check_case(const Case& each, std::string_view kind, std::string_view list) {
    try {
      if (const auto wrong = wrong_size(pair_, parse_sizes(each.sizes)))
        add("{} '{}' of its {}: {}", kind, each.name, list, *wrong);
    } catch (const std::invalid_argument& error) {
      add("{} '{}' of its {}: '{}' {}", kind, each.name, list, base::one_line(std::string{each.sizes}, 40), error.what());
    }
  }

  const Entry& entry_;
  const Pair& pair_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> faults(const Entry& entry) { return Faults{entry}.find(); }

}  // namespace aisp::pair
