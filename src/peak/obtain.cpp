// SPDX-License-Identifier: Apache-2.0
#include "peak/obtain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/cache.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "machine/gpu_lock.hpp"
#include "peak/child.hpp"

namespace aisp::peak {
namespace {

constexpr double quick_limit_s = 20, full_limit_s = 300;

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
std::vector<base::FileLock> lock(std::vector<std::string> uuids, const std::string& purpose) {
  std::sort(uuids.begin(), uuids.end());
  std::vector<base::FileLock> locks;
  for (const std::string& uuid : uuids) locks.push_back(machine::lock_gpu(uuid, purpose));
  return locks;
}

std::optional<Record> cached(const Key& key, const Options& options) {
  if (options.refresh) return std::nullopt;
  Cached found = load(base::cache_folder(), key);
  if (!found.warning.empty()) options.note(found.warning);
  if (found.record && found.record->quick && !options.quick) return std::nullopt;
  return found.record;
}

void keep(const Record& record, const Options& options) {
  try {
    store(base::cache_folder(), record);
  } catch (const base::Error& error) {
    options.note(fmt::format("the ceilings are not kept for other commands: {}", error.what()));
  }
}

Obtained measure(const Key& key, const std::vector<std::string>& gpus, const Options& options) {
  const Wish wish{.gpus = gpus,
                  .quick = options.quick,
                  .limit_s = options.quick ? quick_limit_s : full_limit_s,
                  .executable = options.executable};
  Answer answer = ask(wish);
  const bool any = std::any_of(answer.figures.begin(), answer.figures.end(), [](const Figure& f) { return f.measured(); });
  if (!any) {
    const bool told = answer.trouble.empty() && !answer.figures.empty();
    return {.why_not = told ? answer.figures.front().why_not : answer.trouble};
  }
  if (!answer.trouble.empty()) options.note("not everything was measured: " + answer.trouble);
  Record record{key, base::utc_now(), options.quick, std::move(answer.figures)};
  keep(record, options);
  return {.record = std::move(record)};
}

std::string how_long(const Options& options) { return options.quick ? "up to ten seconds" : "about a minute"; }

}  // namespace

Obtained obtain_gpu(const machine::Machine& machine, int ordinal, const Options& options) {
  const machine::Gpu& gpu = machine.gpus.at(static_cast<std::size_t>(ordinal));
  const Key key = key_of(gpu, machine.driver_version);
  if (std::optional<Record> record = cached(key, options)) return {.record = std::move(record), .from_cache = true};
  const std::vector<std::string> uuids = with_peers(machine, gpu);
  const std::vector<base::FileLock> locks = lock(uuids, options.purpose);
  options.note(fmt::format("measuring the ceilings of GPU {} ({}): {}", ordinal, gpu.name, how_long(options)));
  return measure(key, uuids, options);
}

Obtained obtain_host(const machine::Machine& machine, const Options& options) {
  const Key key = key_of(machine.host);
  if (std::optional<Record> record = cached(key, options)) return {.record = std::move(record), .from_cache = true};
  options.note("measuring the ceilings of the host's memory: a few seconds");
  return measure(key, {}, options);
}

void ensure(const machine::Machine& machine, const std::vector<int>& gpus, Options options) {
  const char* wanted = std::getenv("AISP_PEAK");
  if (gpus.empty() || (wanted != nullptr && std::string_view{wanted} == "off")) return;
  options.quick = true;
  const auto attempt = [&](const std::string& what, const std::function<Obtained()>& obtain) {
    std::string why_not;
    try {
      why_not = obtain().why_not;
    } catch (const base::Error& error) {
      if (error.status() == base::Exit::interrupted) throw;
      why_not = error.what();
    }
    if (!why_not.empty()) options.note(fmt::format("the ceilings of {} are not measured: {}", what, why_not));
  };
  for (const int ordinal : gpus) attempt(fmt::format("GPU {}", ordinal), [&] { return obtain_gpu(machine, ordinal, options); });
  attempt("the host", [&] { return obtain_host(machine, options); });
}

}  // namespace aisp::peak
