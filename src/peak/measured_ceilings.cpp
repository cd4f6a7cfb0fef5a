// SPDX-License-Identifier: Apache-2.0
#include "peak/record.hpp"

#include <algorithm>

#include "base/system/places.hpp"

namespace aisp::peak {
namespace {

class Merge {
 public:
  Merge(machine::Ceilings known, const PeakRecord& record) : ceilings_{std::move(known)}, record_{record} {}

  // Sets `ceiling` to the best of the figures, and `from` if there is one.
  void take(double& ceiling, base::CeilingFrom& from, std::initializer_list<std::string_view> ids, bool matters = true) {
    double best = 0;
    for (const std::string_view id : ids)
      if (const Figure* figure = record_.find(id)) best = std::max(best, figure->value);
    if (best > 0) {
      ceiling = best;
      from = base::CeilingFrom::measured;
    } else {
      incomplete_ = incomplete_ || (matters && ceiling > 0);
    }
  }

  machine::Ceilings& ceilings() { return ceilings_; }

  machine::Ceilings finish() {
    const std::string before = ceilings_.source;
    ceilings_.source = "measured by aisp peak " + record_.measured_utc.substr(0, 10) + (record_.quick ? " (quick)" : "");
    if (incomplete_) ceilings_.source += "; what it could not measure: " + before;
    return ceilings_;
  }

 private:
  machine::Ceilings ceilings_;
  const PeakRecord& record_;
  bool incomplete_ = false;
};

}  // namespace

machine::Ceilings measured_over(machine::Ceilings known, const PeakRecord& record, bool with_peers) {
  const bool any = std::any_of(record.figures.begin(), record.figures.end(), [](const Figure& f) { return f.measured(); });
  if (!any) return known;
  Merge merge{std::move(known), record};
  machine::Ceilings& c = merge.ceilings();
  machine::CeilingSources& from = c.from;
  // A memory's ceiling is made of both rates.
  base::CeilingFrom copy_from = from.memory, read_from = from.memory;
  merge.take(c.copy_bytes_s, copy_from, {figure_id::hbm_copy});
  merge.take(c.read_bytes_s, read_from, {figure_id::hbm_read});
  from.memory = std::max(copy_from, read_from);
  for (std::size_t i = 0; i < machine::math_kinds; ++i)
    merge.take(c.flops_s[i], from.flops[i], {machine::name_of(static_cast<Math>(i))});
  merge.take(c.host_to_device_bytes_s, from.host_to_device, {figure_id::host_to_device});
  merge.take(c.device_to_host_bytes_s, from.device_to_host, {figure_id::device_to_host});
  merge.take(c.peer_bytes_s, from.peer, {figure_id::peer_copy, figure_id::peer_pull}, with_peers);
  merge.take(c.launch_s, from.launch, {figure_id::graph_node});
  merge.take(c.l2_bytes_s, from.l2, {figure_id::l2_read}, false);
  double shared_bytes_s = 0;
  merge.take(shared_bytes_s, from.wavefronts, {figure_id::shared_read}, false);
  if (shared_bytes_s > 0) c.wavefronts_s = shared_bytes_s / machine::wavefront_bytes;
  merge.take(c.host_copy_bytes_s, from.host_copy, {figure_id::host_copy, figure_id::host_read});
  return merge.finish();
}

machine::Ceilings best_known(const machine::Gpu& gpu, const std::string& driver, bool with_peers) {
  const Cached cached = load(base::cache_folder(), key_of(gpu, driver));
  machine::Ceilings known = machine::provisional_ceilings(gpu);
  return cached.record ? measured_over(std::move(known), *cached.record, with_peers) : known;
}

machine::Ceilings best_known(const machine::Host& host) {
  const Cached cached = load(base::cache_folder(), key_of(host));
  return cached.record ? measured_over(machine::host_ceilings(), *cached.record, false) : machine::host_ceilings();
}

}  // namespace aisp::peak
