#include "binding/async.h"

namespace molt::binding {

void Operation::run() {
  try {
    work();
  } catch (const std::exception& error) {
    error_ = messageOf(error);
  }
}

void Operation::settle(Napi::Env env) {
  Napi::HandleScope scope(env);
  try {
    if (!error_) return deferred_.Resolve(convert(env));
    deferred_.Reject(Napi::Error::New(env, *error_).Value());
  } catch (const Napi::Error& error) {
    deferred_.Reject(error.Value());
  }
}

Napi::Promise submit(Napi::Env env, Operation* operation) {
  Addon& addon = Addon::of(env);
  if (addon.pending++ == 0) napi_ref_threadsafe_function(env, addon.completions);
  Napi::Promise promise = operation->promise();
  TaskQueue::instance().submit([operation, completions = addon.completions] {
    operation->run();
    // Refused only where the environment is closing: nobody is left to settle for.
    if (napi_call_threadsafe_function(completions, operation, napi_tsfn_nonblocking) != napi_ok) delete operation;
  });
  return promise;
}

}  // namespace molt::binding
