// SPDX-License-Identifier: Apache-2.0
// NCCL, collectives among the GPUs of one pair, opened at run time: nothing of it is linked, and none of its headers is needed.
// Types and numbers are those of NVIDIA's NCCL user guide, version 2.17 or newer, as far as they are used. A variant that uses it
// says `.needs = {.libraries = {Library::nccl}}`.
#pragma once
#include <aisp/check.hpp>
#include <aisp/front_end.hpp>
#include <aisp/library.hpp>
#include <aisp/opened.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace aisp {

namespace nccl {

enum class Status : int { success = 0 };                                                            // ncclResult_t
enum class Type : int { int8 = 0, int32 = 2, int64 = 4, fp16 = 6, fp32 = 7, bf16 = 9, e4m3 = 10 };  // ncclDataType_t
enum class Operation : int { sum = 0 };                                                             // ncclRedOp_t
using Communicator = void*;
struct UniqueId {
  char bytes[128];
};
// ncclConfig_t as of 2.17; a newer library fills missing fields from its defaults, by the version.
struct Config {
  static constexpr int by_default = INT32_MIN;
  std::size_t size = sizeof(Config);
  unsigned magic = 0xCAFEBEEF;
  unsigned version = 21700;
  int blocking = by_default;
  int cga_cluster_size = by_default;
  int least_ctas = by_default;
  int most_ctas = by_default;
  const char* network = nullptr;
  int split_share = by_default;
};

using GetErrorString = const char*(Status);
using GetUniqueId = Status(UniqueId*);
using InitRank = Status(Communicator*, int ranks, UniqueId, int rank, Config*);
using Destroy = Status(Communicator);
using Group = Status();
using AllReduce = Status(const void* sent, void* received, std::size_t count, Type, Operation, Communicator, cudaStream_t);
using ReduceScatter = Status(const void* sent, void* received, std::size_t received_count, Type, Operation, Communicator,
                             cudaStream_t);
using AllGather = Status(const void* sent, void* received, std::size_t sent_count, Type, Communicator, cudaStream_t);
using Send = Status(const void* sent, std::size_t count, Type, int peer, Communicator, cudaStream_t);
using Receive = Status(void* received, std::size_t count, Type, int peer, Communicator, cudaStream_t);

// The library's own calls, by name: function<nccl::Send>("ncclSend").
template <class F>
F* function(const char* name) {
  return SharedLibrary::open(Library::nccl).function<F>(name);
}

}  // namespace nccl

inline void check(nccl::Status status, const std::source_location& where = std::source_location::current()) {
  if (status != nccl::Status::success)
    throw std::runtime_error{"NCCL: " + std::string{nccl::function<nccl::GetErrorString>("ncclGetErrorString")(status)} +
                             " at line " + std::to_string(where.line()) + " of " + where.file_name()};
}

}  // namespace aisp

namespace aisp::inline AISP_FRONT_END {

// A communicator with a rank for each GPU of the pair, all in this process. Calls for several ranks, and several calls, must be
// grouped by together(): a single one waits for the other ranks, which the same thread has yet to call. Counts are elements.
class Nccl {
 public:
  static constexpr Library library = Library::nccl;

  // most_ctas: SMs that a collective may take; 0: the library's choice.
  Nccl(const int* ordinals, int gpus, int most_ctas = 0) : communicators_(static_cast<std::size_t>(gpus)) {
    nccl::UniqueId id{};
    check(nccl::function<nccl::GetUniqueId>("ncclGetUniqueId")(&id));
    const auto init = nccl::function<nccl::InitRank>("ncclCommInitRankConfig");
    int selected = 0;
    check(cudaGetDevice(&selected));
    together([&] {
      for (int rank = 0; rank < gpus; ++rank) {
        nccl::Config config;
        if (most_ctas > 0) config.most_ctas = most_ctas;
        check(cudaSetDevice(ordinals[rank]));
        check(init(&communicators_[static_cast<std::size_t>(rank)], gpus, id, rank, &config));
      }
    });
    check(cudaSetDevice(selected));
  }
  ~Nccl() {
    for (const nccl::Communicator each : communicators_) destroy_(each);
  }
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  template <class Calls>
  void together(Calls calls) const {
    check(begin_());
    calls();
    check(end_());
  }

  void all_reduce(int rank, const void* sent, void* received, std::size_t count, nccl::Type type, cudaStream_t stream) const {
    check(all_reduce_(sent, received, count, type, nccl::Operation::sum, of(rank), stream));
  }
  void reduce_scatter(int rank, const void* sent, void* received, std::size_t received_count, nccl::Type type,
                      cudaStream_t stream) const {
    check(reduce_scatter_(sent, received, received_count, type, nccl::Operation::sum, of(rank), stream));
  }
  void all_gather(int rank, const void* sent, void* received, std::size_t sent_count, nccl::Type type,
                  cudaStream_t stream) const {
    check(all_gather_(sent, received, sent_count, type, of(rank), stream));
  }
  void send(int rank, const void* sent, std::size_t count, nccl::Type type, int peer, cudaStream_t stream) const {
    check(send_(sent, count, type, peer, of(rank), stream));
  }
  void receive(int rank, void* received, std::size_t count, nccl::Type type, int peer, cudaStream_t stream) const {
    check(receive_(received, count, type, peer, of(rank), stream));
  }

 private:
  nccl::Communicator of(int rank) const { return communicators_[static_cast<std::size_t>(rank)]; }

  nccl::Group* begin_ = nccl::function<nccl::Group>("ncclGroupStart");
  nccl::Group* end_ = nccl::function<nccl::Group>("ncclGroupEnd");
  nccl::Destroy* destroy_ = nccl::function<nccl::Destroy>("ncclCommDestroy");
  nccl::AllReduce* all_reduce_ = nccl::function<nccl::AllReduce>("ncclAllReduce");
  nccl::ReduceScatter* reduce_scatter_ = nccl::function<nccl::ReduceScatter>("ncclReduceScatter");
  nccl::AllGather* all_gather_ = nccl::function<nccl::AllGather>("ncclAllGather");
  nccl::Send* send_ = nccl::function<nccl::Send>("ncclSend");
  nccl::Receive* receive_ = nccl::function<nccl::Receive>("ncclRecv");
  std::vector<nccl::Communicator> communicators_;
};

// clang-format 14 cannot settle on the comment of an inline namespace.
// clang-format off
}  // namespace aisp::inline AISP_FRONT_END
// clang-format on
