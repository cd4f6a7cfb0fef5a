// SPDX-License-Identifier: Apache-2.0
// A machine's limits: measured or recorded ceilings for "how close did it get", theoretical peaks for "that cannot be".
#pragma once
#include <aisp/workload.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ceiling_from.hpp"
#include "machine/machine.hpp"
#include "machine/number_types.hpp"

namespace aisp::machine {

// That a wavefront of shared memory moves at most: 32 banks of four bytes.
inline constexpr double wavefront_bytes = 128;

// The source of each ceiling.
struct CeilingSources {
  using From = base::CeilingFrom;
  From memory = From::guess;
  std::array<From, math_kinds> flops = all_guessed();  // by Math
  From host_to_device = From::guess, device_to_host = From::guess, peer = From::guess;
  From host_copy = From::guess, launch = From::guess;
  From l2 = From::guess, wavefronts = From::guess;

 private:
  static constexpr std::array<From, math_kinds> all_guessed() {
    std::array<From, math_kinds> all{};
    all.fill(From::guess);
    return all;
  }
};

// Bytes and FLOPs per second; 0 where nobody measured.
struct Ceilings {
  double copy_bytes_s = 0;  // device memory, read plus written
  double read_bytes_s = 0;
  std::array<double, math_kinds> flops_s{};  // by Math
  double host_to_device_bytes_s = 0;
  double device_to_host_bytes_s = 0;
  double peer_bytes_s = 0;             // one direction between two GPUs
  double host_copy_bytes_s = 0;        // host memory, read plus written
  double launch_s = 0;                 // a kernel that must follow another
  double l2_bytes_s = 0;               // between L2 and all SMs
  double wavefronts_s = 0;             // of shared memory, on all SMs
  double issue_slots_s = 0;            // instructions of warps, on all SMs
  double special_functions_s = 0;      // of threads, on all SMs
  std::uint64_t host_cache_bytes = 0;  // last-level caches of the host; 0: unknown, and then no floor is of host memory
  std::string source;                  // "provisional: recorded on an H200", "aisp peak 2026-11-21"
  CeilingSources from;                 // issue slots and special functions are always computed
};

// The same chip's recorded values where there are some, else fractions of the theoretical peaks.
Ceilings provisional_ceilings(const Gpu& gpu);
// Whether a workload that moves so many bytes is one of host memory: the caches may keep less from one execution to the next.
bool beyond_host_caches(double bytes, const Ceilings& ceilings);
Ceilings host_ceilings();  // of pairs without a GPU: nothing is known before `aisp peak`

struct Peaks {
  double memory_bytes_s = 0;                 // the greater of the datasheet's and memory clock x bus width
  double datasheet_bytes_s = 0;              // of memory; 0 where no sheet of the chip is known
  std::array<double, math_kinds> flops_s{};  // dense
  double l2_bytes_s = 0;
  double wavefronts_s = 0;
  double issue_slots_s = 0;
  double special_functions_s = 0;
  double pcie_bytes_s = 0;    // one direction; NVLink-C2C where the CPU hangs on it
  double peer_bytes_s = 0;    // one direction
  std::string memory_source;  // "datasheet", "memory clock x bus width"
};
Peaks theoretical_peaks(const Gpu& gpu);
double pcie_bytes_s(int generation, int width);  // one direction, line code taken off
double memory_clock_bytes_s(const Gpu& gpu);     // two transfers a clock, as drivers state the clocks of HBM and GDDR

// Returns the bandwidth of device memory for a mix of reads and writes, bytes per second. Memory loses time when it turns from
// one to the other: a copy turns most, a workload that only reads never. Between the two the loss grows with the smaller part (a
// triad, one third written, was measured at 4.35 TB/s on an H200; 4.57 and 4.25 for reads and copies give 4.35).
double memory_bytes_s(double bytes, double bytes_written, const Ceilings& ceilings);

struct FloorTime {
  double seconds = 0;  // 0: the cost names nothing that has a ceiling
  std::string
      limiter;  // "memory", "compute (bf16)", "L2", "shared memory", "issue slots", "special functions", "host to device",
                // "device to host", "peer", "host memory", "launch", "declared"; of phases in turn, that of the longest
  std::string ceiling;                                   // "4.25 TB/s"
  base::CeilingFrom from = base::CeilingFrom::measured;  // of the ceiling; of several phases or types of math the worst
};
// `bytes_written`: how many of all phases' bytes are written.
FloorTime floor_seconds(const Cost& cost, const Ceilings& ceilings, double bytes_written = 0);

// The shortest time that physics allows on this chip, and the arithmetic that says so. A time below it is an error of the
// measurement or of the declared cost.
struct ImpossibleTime {
  double seconds = 0;
  std::string arithmetic;  // "4.29 GB beyond the 63 MB of L2 at 3.36 TB/s (datasheet) take 1.26 ms"
};
ImpossibleTime impossible_seconds(const Cost& cost, const Peaks& peaks, std::uint64_t l2_bytes);

// An amount of a cost other than arithmetic, and what bounds its rate.
struct CostAmount {
  std::string_view name;  // the member's
  double Cost::*amount;
  bool of_gpu;                          // a workload of the host has none
  double Ceilings::*ceiling = nullptr;  // null: none, or one that depends on more than the amount
  double Peaks::*peak = nullptr;
  std::string_view unit{}, limiter{};
  std::string_view path{};                              // of bytes, in words; empty: a count that SMs bound
  base::CeilingFrom CeilingSources::*source = nullptr;  // null: computed
};
std::span<const CostAmount> cost_amounts();  // all there are

// Every type of math of one phase, with FLOPs; a type that is named twice comes once.
std::vector<MoreMath> math_of(const Cost& cost);
// Returns all phases together as one phase; a cost without phases is its own.
Cost whole(const Cost& cost);

}  // namespace aisp::machine
