// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "pair/session.hpp"

namespace aisp::measure {

// Digests of a session's outputs and inouts without waiting: queued on a stream for device memory, taken at reading for host
// memory.
class OutputDigests {
 public:
  explicit OutputDigests(pair::Session& session);
  ~OutputDigests();
  OutputDigests(const OutputDigests&) = delete;
  OutputDigests& operator=(const OutputDigests&) = delete;

  // Code is loaded at its first launch, which waits for the GPU: not behind a closed gate. No buffer is read, since none may have
  // been written yet.
  void load();
  // On the pair's own streams: behind what these hold.
  void queue();
  // On streams of the harness: of what the buffers hold now.
  void queue_aside();
  // Whether the work that queue_aside() queued is done.
  bool ready() const;
  // Returns the digests of session.results() in order; the streams must be idle.
  std::vector<std::uint64_t> read() const;

 private:
  void queue_on(const std::vector<cudaStream_t>& streams);

  pair::Session& session_;
  std::vector<std::uint64_t*> cells_;  // per GPU, on it: one of each output and one more; empty for host pairs
  std::vector<std::uint64_t*> found_;  // the same, page-locked
  std::vector<cudaStream_t> own_streams_;
  std::vector<cudaStream_t> main_streams_;
};

}  // namespace aisp::measure
