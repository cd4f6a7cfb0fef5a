// SPDX-License-Identifier: Apache-2.0
#include "peak/obtain.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <future>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/places.hpp"
#include "machine/gpu_lock.hpp"

namespace aisp::peak {
namespace {

constexpr double quick_limit_s = 20, full_limit_s = 300, fabric_limit_s = 60;

// The GPU itself, then those of its kind whose memory it can address.
std::vector<std::string> with_peers(const machine::Machine& machine, const machine::Gpu& gpu) {
  std::vector<std::string> uuids = {gpu.uuid};
  for (const machine::Gpu& other : machine.gpus) {
    const auto index = static_cast<std::size_t>(other.ordinal);
    if (index < gpu.peers.size() && gpu.peers[index] && other.name == gpu.name) uuids.push_back(other.uuid);
  }
  return uuids;
}

// In one order for all, so that two commands cannot each hold what the other waits for.
std::vector<base::FileLock> lock_all(const machine::Machine& machine, const std::vector<std::vector<std::string>>& groups,
                                     const ObtainOptions& options) {
  std::set<std::string> uuids;
  for (const std::vector<std::string>& group : groups) uuids.insert(group.begin(), group.end());
  for (const int ordinal : options.locked) uuids.erase(machine.gpus.at(static_cast<std::size_t>(ordinal)).uuid);
  std::vector<base::FileLock> locks;
  for (const std::string& uuid : uuids) locks.push_back(machine::lock_gpu(uuid, options.purpose));
  return locks;
}

std::optional<PeakRecord> cached(const Key& key, Subject subject, const ObtainOptions& options) {
  if (options.refresh) return std::nullopt;
  Cached found = load(base::cache_folder(), key, subject);
  if (!found.warning.empty()) options.note(found.warning);
  if (found.record && (!found.record->partial.empty() || (found.record->quick && !options.quick))) return std::nullopt;
  return found.record;
}

ChildRequest request_of(std::vector<std::string> gpus, const ObtainOptions& options, FigurePart part = FigurePart::all) {
  return {.gpus = std::move(gpus),
          .part = part,
          .quick = options.quick,
          .limit_s = options.quick ? quick_limit_s : full_limit_s,
          .executable = options.executable};
}

// Keeps for other commands what the process that measures told, if it is anything.
Obtained conclude(Key key, PeakRecord record, const ObtainOptions& options) {
  constexpr std::array contents{"ceilings", "memory levels", "links"};  // in the order of Subject
  const Subject subject = record.subject();
  if (subject == Subject::figures && std::ranges::none_of(record.figures, &Figure::measured)) {
    const bool told = record.partial.empty() && !record.figures.empty();
    return {.why_not = told ? record.figures.front().why_not : record.partial};
  }
  if (!record.partial.empty()) options.note("not everything was measured: " + record.partial);
  record.key = std::move(key);
  record.measured_utc = base::utc_now();
  record.quick = options.quick;
  try {
    store(base::cache_folder(), record);
  } catch (const base::Error& error) {
    options.note(
        fmt::format("the {} are not kept for other commands: {}", contents.at(static_cast<std::size_t>(subject)), error.what()));
  }
  return {.record = std::move(record)};
}

// Asks the first GPU of each group.
std::vector<PeakRecord> ask_all(const std::vector<std::vector<std::string>>& groups, const ObtainOptions& options) {
  if (groups.size() == 1) return {ask(request_of(groups.front(), options))};
  std::vector<std::future<PeakRecord>> chips;
  for (const std::vector<std::string>& group : groups)
    chips.push_back(std::async(std::launch::async, ask, request_of({group.front()}, options, FigurePart::chip)));
  for (const std::future<PeakRecord>& chip : chips) chip.wait();
  std::vector<PeakRecord> answers;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    PeakRecord& answer = answers.emplace_back(chips[i].get());
    PeakRecord links = ask(request_of(groups[i], options, FigurePart::links));
    std::ranges::move(links.figures, std::back_inserter(answer.figures));
    if (answer.partial.empty()) answer.partial = std::move(links.partial);
  }
  return answers;
}

// Asks each GPU for the figures by which GPUs are compared, all at once: what one draws, and how warm it gets, is part of it.
std::vector<PeakRecord> ask_for_comparison(const std::vector<std::string>& uuids, const ObtainOptions& options) {
  std::vector<std::future<PeakRecord>> futures;
  for (const std::string& uuid : uuids) {
    ChildRequest request = request_of({uuid}, options, FigurePart::chip);
    request.limit_s = fabric_limit_s;
    request.only = {std::string{figure_id::hbm_read}, std::string{figure_id::hbm_copy}, "bf16"};
    futures.push_back(std::async(std::launch::async, ask, std::move(request)));
  }
  for (const std::future<PeakRecord>& future : futures) future.wait();
  std::vector<PeakRecord> answers;
  for (std::future<PeakRecord>& future : futures) answers.push_back(future.get());
  return answers;
}

// Asks once more where the process did not come to its end: a run that goes by half of the ceilings calls the wrong half too low.
void complete(PeakRecord& answer, const std::vector<std::string>& gpus, const std::string& what, const ObtainOptions& options) {
  if (answer.partial.empty() || answer.figures.empty()) return;
  options.note(fmt::format("measuring the ceilings of {} again: {}", what, answer.partial));
  PeakRecord again = ask(request_of(gpus, options));
  for (Figure& figure : answer.figures) {
    const bool anew = std::ranges::any_of(again.figures, [&](const Figure& f) { return f.id == figure.id && f.measured(); });
    if (figure.measured() && !anew) {
      std::erase_if(again.figures, [&](const Figure& f) { return f.id == figure.id; });
      again.figures.push_back(std::move(figure));
    }
  }
  answer = std::move(again);
}

// "GPU 0 (NVIDIA H200)", "GPUs 0, 1, 2, 3 (NVIDIA H200)"
std::string words_for(const machine::Machine& machine, const std::vector<int>& ordinals) {
  std::vector<std::string> names;
  for (const int ordinal : ordinals) {
    const std::string& name = machine.gpus.at(static_cast<std::size_t>(ordinal)).name;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return fmt::format("{} {} ({})", ordinals.size() == 1 ? "GPU" : "GPUs", fmt::join(ordinals, ", "), fmt::join(names, ", "));
}

// Several take the links of each besides.
std::string how_long(const ObtainOptions& options, std::size_t gpus) {
  if (options.quick) return gpus == 1 ? "up to ten seconds" : fmt::format("up to {} seconds", 8 + 4 * gpus);
  return "about a minute";
}

}  // namespace

std::vector<Obtained> obtain_gpus(const machine::Machine& machine, const std::vector<int>& ordinals,
                                  const ObtainOptions& options) {
  std::vector<Obtained> obtained(ordinals.size());
  std::vector<std::size_t> open;  // positions of those that nobody has measured
  std::vector<int> open_ordinals;
  std::vector<std::vector<std::string>> groups;
  const auto key = [&](std::size_t i) {
    return key_of(machine.gpus.at(static_cast<std::size_t>(ordinals[i])), machine.driver_version);
  };
  for (std::size_t i = 0; i < ordinals.size(); ++i) {
    if (std::optional<PeakRecord> record = cached(key(i), Subject::figures, options)) {
      obtained[i] = {.record = std::move(record), .from_cache = true};
      continue;
    }
    open.push_back(i);
    open_ordinals.push_back(ordinals[i]);
    groups.push_back(with_peers(machine, machine.gpus[static_cast<std::size_t>(ordinals[i])]));
  }
  if (open.empty()) return obtained;
  const std::vector<base::FileLock> locks = lock_all(machine, groups, options);
  options.note(
      fmt::format("measuring the ceilings of {}: {}", words_for(machine, open_ordinals), how_long(options, open.size())));
  std::vector<PeakRecord> answers = ask_all(groups, options);
  for (std::size_t i = 0; i < open.size(); ++i) {
    complete(answers[i], groups[i], fmt::format("GPU {}", open_ordinals[i]), options);
    obtained[open[i]] = conclude(key(open[i]), std::move(answers[i]), options);
  }
  return obtained;
}

Obtained obtain_host(const machine::Machine& machine, const ObtainOptions& options) {
  const Key key = key_of(machine.host);
  if (std::optional<PeakRecord> record = cached(key, Subject::figures, options))
    return {.record = std::move(record), .from_cache = true};
  options.note("measuring the ceilings of the host's memory: a few seconds");
  PeakRecord answer = ask(request_of({}, options));
  complete(answer, {}, "the host's memory", options);
  return conclude(key, std::move(answer), options);
}

Obtained obtain_levels(const machine::Machine& machine, std::optional<int> gpu, const ObtainOptions& options) {
  const machine::Gpu* const device = gpu ? &machine.gpus.at(static_cast<std::size_t>(*gpu)) : nullptr;
  const Key key = device != nullptr ? key_of(*device, machine.driver_version) : key_of(machine.host);
  if (std::optional<PeakRecord> record = cached(key, Subject::levels, options))
    return {.record = std::move(record), .from_cache = true};
  std::vector<std::string> uuids;
  if (device != nullptr) uuids.push_back(device->uuid);
  const std::vector<base::FileLock> locks = lock_all(machine, {uuids}, options);
  options.note(fmt::format("measuring the memory levels of {}: up to a minute",
                           device != nullptr ? fmt::format("GPU {} ({})", *gpu, device->name) : "the host"));
  ChildRequest request = request_of(std::move(uuids), options);
  request.subject = Subject::levels;
  return conclude(key, ask(request), options);
}

Obtained obtain_fabric(const machine::Topology& topology, const std::vector<int>& ordinals, const ObtainOptions& options) {
  const machine::Machine& machine = topology.machine;
  std::vector<std::string> uuids;
  for (const int ordinal : ordinals) uuids.push_back(machine.gpus.at(static_cast<std::size_t>(ordinal)).uuid);
  const std::vector<base::FileLock> locks = lock_all(machine, {uuids}, options);
  options.note(fmt::format("measuring the links of {}: about half a minute", words_for(machine, ordinals)));
  std::vector<PeakRecord> chips = ask_for_comparison(uuids, options);
  ChildRequest request = request_of(uuids, options);
  request.subject = Subject::fabric;
  request.limit_s = fabric_limit_s;
  PeakRecord answer = ask(request);
  if (!answer.fabric) return {.why_not = answer.partial};
  Fabric& fabric = *answer.fabric;
  if (!answer.partial.empty())
    fabric.missing.push_back(fmt::format("links: {}{}", std::exchange(answer.partial, {}), nccl_advice));
  for (std::size_t i = 0; i < fabric.gpus.size(); ++i) {
    FabricGpu& gpu = fabric.gpus[i];
    gpu.ordinal = ordinals.at(i);
    gpu.uuid = uuids[i];
    gpu.name = machine.gpus.at(static_cast<std::size_t>(gpu.ordinal)).name;
    gpu.figures = std::move(chips[i].figures);
    const std::string& trouble = chips[i].partial;
    if (!trouble.empty()) fabric.missing.push_back(fmt::format("GPU {}: {}", gpu.ordinal, trouble));
    for (const Figure& figure : gpu.figures)
      if (!figure.measured()) fabric.missing.push_back(fmt::format("GPU {}, {}: {}", gpu.ordinal, figure.id, figure.why_not));
  }
  for (FabricPair& pair : fabric.pairs) {
    pair.from = ordinals.at(static_cast<std::size_t>(pair.from));
    pair.to = ordinals.at(static_cast<std::size_t>(pair.to));
    pair.path = machine::path_text(topology, static_cast<std::size_t>(pair.from), static_cast<std::size_t>(pair.to));
  }
  return conclude(fabric_key(machine, ordinals), std::move(answer), options);
}

void ensure(const machine::Machine& machine, const std::vector<int>& gpus, ObtainOptions options) {
  const char* wanted = std::getenv("AISP_PEAK");
  if (gpus.empty() || (wanted != nullptr && std::string_view{wanted} == "off")) return;
  options.quick = true;
  const auto complain = [&](const std::string& what, const std::string& why_not) {
    if (!why_not.empty()) options.note(fmt::format("the ceilings of {} are not measured: {}", what, why_not));
  };
  const auto attempt = [&](const std::string& what, const std::function<void()>& obtain) {
    try {
      obtain();
    } catch (const base::Error& error) {
      if (error.status() == base::Exit::interrupted) throw;
      complain(what, error.what());
    }
  };
  attempt(words_for(machine, gpus), [&] {
    const std::vector<Obtained> obtained = obtain_gpus(machine, gpus, options);
    for (std::size_t i = 0; i < gpus.size(); ++i) complain(fmt::format("GPU {}", gpus[i]), obtained[i].why_not);
  });
  attempt("the host", [&] { complain("the host", obtain_host(machine, options).why_not); });
}

}  // namespace aisp::peak
