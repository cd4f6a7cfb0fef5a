// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "pair/session.hpp"

namespace aisp::measure {

// Computes digests of a session's outputs and inouts without waiting: queued on a stream for device memory, computed by read()
// for host memory.
class OutputDigests {
 public:
  explicit OutputDigests(pair::Session& session);
  ~OutputDigests();
  OutputDigests(const OutputDigests&) = delete;
  OutputDigests& operator=(const OutputDigests&) = delete;

  // Loads the code by a first launch, which waits for the GPU and so must not follow a closed gate. Reads no buffer, since none
  // may have been written yet.
  void load();
  // Queues digests on the pair's own streams, after their work.
  void queue(const pair::DigestKey& key);
  // Queues digests of the buffers' present contents on the harness's streams.
  void queue_aside();
  // Whether the work that queue_aside() queued is done.
  bool ready() const;
  // Returns the digests of session.results() in order; the streams must be idle. `key`: as queued.
  std::vector<std::uint64_t> read(const pair::DigestKey& key) const;

 private:
  void queue_on(const std::vector<cudaStream_t>& streams, const pair::DigestKey& key);

  pair::Session& session_;
  std::vector<std::uint64_t*> cells_;  // in each GPU's memory: one for each output and one more; empty for host pairs
  std::vector<std::uint64_t*> found_;  // the same, page-locked
  std::vector<cudaStream_t> own_streams_;
  std::vector<cudaStream_t> main_streams_;
};

}  // namespace aisp::measure
