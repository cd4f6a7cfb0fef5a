// SPDX-License-Identifier: Apache-2.0
// The parts of Setup other than buffers.
#include <sched.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include "pair/session.hpp"
#include "pair/threads.hpp"

namespace aisp::pair {

FileInput Session::file(const char* name, std::size_t bytes) {
  // Written by the refill that follows the workload's construction; a seed that no refill uses marks it as missing.
  files_.push_back({std::string{scratch_directory()} + "/" + name, bytes, ~std::uint64_t{0}, ~std::uint64_t{0}});
  return FileInput{FilePath{files_.back().path.c_str()}, bytes, &files_.back().seed};
}

std::size_t Session::scaled(std::size_t full, std::size_t multiple) const { return pair::scaled(full, multiple, options_.scale); }

std::size_t Session::size(std::string_view name) const {
  const auto found = sizes_.find(std::string{name});
  if (found == sizes_.end()) throw std::logic_error{"the pair reads a size that it does not declare: " + std::string{name}};
  return found->second;
}

void Session::when_needed(Library library, detail::LibraryObject& object) { library_objects_.emplace_back(library, &object); }

cudaStream_t Session::stream(int gpu, bool urgent) {
  check(cudaSetDevice(device_ordinal(gpu)));
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  extra_streams_.push_back(stream);
  select_first_gpu();
  return stream;
}

SmStream Session::stream_on(int sms, int gpu) {
  check(cudaSetDevice(device_ordinal(gpu)));
  const SmPart& part = sm_parts_.add(device_ordinal(gpu), sms);
  select_first_gpu();
  return {part.stream(), part.sms()};
}

cudaEvent_t Session::event(int gpu) {
  check(cudaSetDevice(device_ordinal(gpu)));
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  extra_events_.push_back(event);
  select_first_gpu();
  return event;
}

ThreadTeam& Session::threads(int workers, bool pinned) {
  teams_.push_back(make_thread_team(workers, pinned));
  return *teams_.back();
}

int Session::cpus() const {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void Session::exchange(const void* own, std::size_t bytes, void* all) {
  constexpr std::size_t most_bytes = 64 << 10;
  if (bytes > most_bytes) throw std::logic_error{"exchange() takes at most 64 KiB of each rank: libraries carry data"};
  auto* to = static_cast<std::byte*>(all);
  for (const std::string& each : rank_group().gather("exchange()", {static_cast<const char*>(own), bytes})) {
    if (each.size() != bytes) throw std::logic_error{"ranks exchange values of different sizes"};
    std::memcpy(to, each.data(), bytes);
    to += bytes;
  }
}

FilePath Session::scratch_directory() {
  if (!scratch_) scratch_.emplace("aisp-scratch-", options_.scratch_parent);
  return FilePath{scratch_->path().c_str()};
}

}  // namespace aisp::pair
