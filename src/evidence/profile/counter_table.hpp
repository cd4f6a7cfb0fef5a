// SPDX-License-Identifier: Apache-2.0
// The single figures among the hardware counters, a row each: files, tables and comparison have them from here. What aisp reads
// them from is in profile/hardware_metrics.cpp.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "evidence/profile/profile.hpp"
#include "evidence/words.hpp"

namespace aisp::evidence {

enum class CounterKind : std::uint8_t { microseconds, percent, bytes, count, ratio };

struct CounterRow {
  std::string_view id;       // in files
  std::string_view heading;  // of its column
  CounterKind kind;
  std::optional<double> Counters::*value;
  std::optional<Direction> better{};  // nothing: neither is, so that it is not compared
};

inline constexpr std::array counter_rows{
    CounterRow{"duration_us", "duration", CounterKind::microseconds, &Counters::duration_us},
    CounterRow{"sm_throughput_percent", "SM", CounterKind::percent, &Counters::sm_throughput_percent, Direction::higher},
    CounterRow{"memory_throughput_percent", "memory", CounterKind::percent, &Counters::memory_throughput_percent,
               Direction::higher},
    CounterRow{"dram_read_bytes", "DRAM read", CounterKind::bytes, &Counters::dram_read_bytes, Direction::lower},
    CounterRow{"dram_write_bytes", "DRAM written", CounterKind::bytes, &Counters::dram_write_bytes, Direction::lower},
    CounterRow{"l2_hit_percent", "L2 hits", CounterKind::percent, &Counters::l2_hit_percent, Direction::higher},
    CounterRow{"occupancy_percent", "occupancy", CounterKind::percent, &Counters::occupancy_percent, Direction::higher},
    CounterRow{"tensor_pipe_percent", "tensor pipe", CounterKind::percent, &Counters::tensor_pipe_percent, Direction::higher},
    CounterRow{"bank_conflicts", "bank conflicts", CounterKind::count, &Counters::bank_conflicts, Direction::lower},
    // How wide accesses are is neither good nor bad by itself.
    CounterRow{"sectors_per_load", "sectors/load", CounterKind::ratio, &Counters::sectors_per_load},
    CounterRow{"sectors_per_store", "sectors/store", CounterKind::ratio, &Counters::sectors_per_store},
};

}  // namespace aisp::evidence
