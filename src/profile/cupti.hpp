// SPDX-License-Identifier: Apache-2.0
// CUPTI's functions, and its records as activities. Private to profile.
#pragma once
#include <cupti.h>

#include <aisp/library.hpp>

#include <vector>

#include "profile/activity.hpp"

namespace aisp::profile {

struct Cupti {
  const SharedLibrary& library = SharedLibrary::open(Library::cupti);
  decltype(&cuptiActivityEnable) enable = library.function<decltype(cuptiActivityEnable)>("cuptiActivityEnable");
  decltype(&cuptiActivityDisable) disable = library.function<decltype(cuptiActivityDisable)>("cuptiActivityDisable");
  decltype(&cuptiActivityFlushAll) flush = library.function<decltype(cuptiActivityFlushAll)>("cuptiActivityFlushAll");
  decltype(&cuptiActivityGetNextRecord) next =
      library.function<decltype(cuptiActivityGetNextRecord)>("cuptiActivityGetNextRecord");
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks =
      library.function<decltype(cuptiActivityRegisterCallbacks)>("cuptiActivityRegisterCallbacks");
  decltype(&cuptiSubscribe) subscribe = library.function<decltype(cuptiSubscribe)>("cuptiSubscribe");
  decltype(&cuptiUnsubscribe) unsubscribe = library.function<decltype(cuptiUnsubscribe)>("cuptiUnsubscribe");
  decltype(&cuptiEnableCallback) enable_callback = library.function<decltype(cuptiEnableCallback)>("cuptiEnableCallback");
  decltype(&cuptiGetTimestamp) timestamp = library.function<decltype(cuptiGetTimestamp)>("cuptiGetTimestamp");
  decltype(&cuptiGetCallbackName) callback_name = library.function<decltype(cuptiGetCallbackName)>("cuptiGetCallbackName");
};

const Cupti& cupti();  // throws Unsupported where it is absent

// Adds what a record says, if it says anything for us.
void keep(const CUpti_Activity* record, std::vector<Activity>& activities);

}  // namespace aisp::profile
