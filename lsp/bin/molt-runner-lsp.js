#!/usr/bin/env node
// In place before anything is built, so that npm links it; what it starts is the bundle.
import "../dist/server.cjs";
