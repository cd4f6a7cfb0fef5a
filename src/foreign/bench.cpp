// SPDX-License-Identifier: Apache-2.0
// Entry of libaisp: one declared pair, through the suite that `aisp run` uses.
#include <fmt/format.h>
#include <stdlib.h>
#include <string.h>

#include <array>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/system/places.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "foreign/declaration.hpp"
#include "foreign/workload.hpp"
#include "pair/registry.hpp"
#include "report/console.hpp"
#include "report/numbers.hpp"
#include "report/pictures/sweep_picture.hpp"
#include "suite/suite.hpp"
#include "suite/task.hpp"

namespace aisp {

namespace foreign {
namespace {

using base::Error;
using base::Exit;
using nlohmann::json;

// The pair that the library measures at the moment is its whole registry, once for each point.
std::vector<pair::Entry>& entries() {
  static std::vector<pair::Entry> all;
  return all;
}
std::vector<pair::Code>& codes() {
  static std::vector<pair::Code> all;
  return all;
}

class Registered {
 public:
  Registered(const std::deque<Declaration>& points, const aisp_calls& calls) {
    for (const Declaration& point : points) {
      entries().push_back(point.entry());
      codes().push_back(point.code());
    }
    present = {&points, &calls};
  }
  ~Registered() {
    entries().clear();
    codes().clear();
    present = {};
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
};

// Restores a variable of the calling program, which goes on after us.
class KeptVariable {
 public:
  explicit KeptVariable(const char* name) : name_{name} {
    if (const char* value = getenv(name)) value_ = value;
  }
  ~KeptVariable() {
    if (value_) setenv(name_, value_->c_str(), 1);
    else unsetenv(name_);
  }
  KeptVariable(const KeptVariable&) = delete;
  KeptVariable& operator=(const KeptVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> value_;
};

// Returns "  twice  23.6 us  22.2 GB/s" of each variant: its time, and its rates where the bytes and FLOPs are known.
std::string rate_lines(const evidence::PairResult& result) {
  std::size_t width = 0;
  for (const evidence::VariantResult& variant : result.variants) width = std::max(width, variant.name.size());
  std::string text;
  for (const evidence::VariantResult& variant : result.variants) {
    if (result.status != evidence::Status::passed || !variant.timing) continue;
    const double per_second = 1e3 / variant.timing->summary.median;
    text += fmt::format("  {:<{}}  {:>8}", variant.name, width, report::median_text(variant));
    if (variant.cost.bytes > 0) text += "  " + base::human_rate(variant.cost.bytes * per_second, "B");
    if (variant.cost.flops > 0) text += "  " + base::human_rate(variant.cost.flops * per_second, "FLOP");
    text += '\n';
  }
  return text;
}

class Listener final : public suite::Watcher {
 public:
  void pair_ended(const evidence::PairResult& result, std::size_t /*done*/, std::size_t /*pairs*/) override {
    if (result.status != evidence::Status::skipped)
      text += report::pair_line(result, base::Painter{}) + '\n' + rate_lines(result) + report::pair_details(result);
  }
  void warned(const std::string& line) override { notes.push_back("warning: " + line); }

  std::string text;
  std::vector<std::string> notes;
};

suite::Configuration configuration_of(const json& settings, const std::string& gpu, bool is_swept) {
  // Each asks for a process of its own, or for what only the pairs of aisp have.
  constexpr std::array unfit{"in-process", "jobs", "gpus", "scale", "size", "sweep", "cold-start", "suite-timeout", "shard"};
  suite::Configuration configuration;
  for (const auto& [name, value] : settings.items()) {
    if (std::ranges::find(unfit, name) != unfit.end())
      throw Error{Exit::usage, fmt::format("aisp.bench: the setting '{}' is for pairs of the command aisp{}", name,
                                           name == "size" || name == "sweep" ? "; give sizes={\"n\": [...]}" : "")};
    suite::apply(configuration, name, {value.get<std::string>()}, "aisp.bench");
  }
  if (!gpu.empty()) configuration.gpus = {gpu};
  if (configuration.profile == run::ProfileLevel::full)
    throw Error{Exit::usage, "aisp.bench: profile 'full' needs processes of its own; 'minimal' is what can be had here"};
  configuration.in_process = true;
  configuration.sweep = is_swept;
  suite::settle_seed(configuration);
  return configuration;
}

// The curves of a sweep as SVG, by what they show.
json pictures_of(const evidence::SuiteResult& suite) {
  constexpr double width_px = 720;
  json pictures = json::object();
  for (const evidence::Sweep& sweep : evidence::sweeps_of(suite.pairs)) {
    pictures["rate"] = report::sweep_svg(sweep, report::SweepQuantity::rate, width_px);
    pictures["speedup"] = report::sweep_svg(sweep, report::SweepQuantity::speedup, width_px);
  }
  return pictures;
}

json measure(const json& given, const aisp_calls& calls) {
  base::embed(given.at("program").get<std::string>());
  std::deque<Declaration> points;
  for (const json& point : given.at("points")) points.emplace_back(point);
  const Registered registered{points, calls};
  const KeptVariable visible_gpus{"CUDA_VISIBLE_DEVICES"};
  const suite::Configuration configuration =
      configuration_of(given.at("settings"), given.at("gpu").get<std::string>(), points.front().is_swept());
  const auto command_line = given.at("command_line").get<std::vector<std::string>>();
  std::vector<const pair::Entry*> selected;
  for (const pair::Entry& entry : entries()) selected.push_back(&entry);
  suite::Task task = suite::make_task(selected, configuration, machine::probe(60, base::program()), command_line);
  Listener listener;
  const std::vector<base::FileLock> locks = suite::lock_gpus(task);
  suite::measure_missing_ceilings(task, [&](const std::string& line) { listener.notes.push_back(line); });
  suite::RunFolder folder =
      suite::RunFolder::create(configuration.artifacts_dir, configuration.run_id, base::join(command_line, " "));
  const suite::Finished finished = suite::run_suite(task, std::move(folder), listener);
  if (!finished.storage_trouble.empty()) throw Error{finished.status, finished.storage_trouble + "; run it again"};
  return {{"status", static_cast<int>(finished.status)},
          {"text", listener.text + report::summary(finished.suite, finished.manifest, base::Painter{})},
          {"pictures", pictures_of(finished.suite)},
          {"notes", listener.notes},
          {"folder", finished.folder.string()},
          {"suite", finished.suite}};
}

json refusal(Exit status, const std::string& line) {
  return {{"status", static_cast<int>(status)}, {"error", base::one_line(line)}};
}

// As main() does for the command.
json answer_to(const char* declaration, const aisp_calls& calls) {
  static std::mutex busy;
  const std::unique_lock lock{busy, std::try_to_lock};
  if (!lock) return refusal(Exit::usage, "aisp.bench measures already; one call at a time");
  try {
    return measure(json::parse(declaration), calls);
  } catch (const Error& error) {
    return refusal(error.status(), error.what());
  } catch (const json::exception& error) {
    return refusal(Exit::usage, std::string{"a value of the declaration has another type than it must have: "} + error.what());
  } catch (const std::bad_alloc&) {
    return refusal(Exit::unfit, "out of memory");
  } catch (const std::filesystem::filesystem_error& error) {
    return refusal(Exit::unfit, error.path1().string() + ": " + error.code().message());
  } catch (const std::exception& error) {
    return refusal(Exit::failed, std::string{"internal: "} + error.what());
  }
}

}  // namespace
}  // namespace foreign

std::span<const pair::Entry> pair::registry() { return foreign::entries(); }
std::span<const pair::NotBuilt> pair::not_built() { return {}; }
std::string_view pair::chosen_at_build() { return {}; }
std::span<const pair::Code> pair::linked_code() { return foreign::codes(); }
std::span<const pair::LinkableKernels> pair::linked_kernels() { return {}; }

}  // namespace aisp

int aisp_bench(const char* declaration, const aisp_calls* calls, char** answer) {
  const nlohmann::json found = aisp::foreign::answer_to(declaration, *calls);
  *answer = strdup(found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  return found.at("status").get<int>();
}

void aisp_release(char* answer) { free(answer); }
