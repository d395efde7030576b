#!/usr/bin/env node
// Builds Typha of Calico, and clients of it, from its Go module, once per version, for `npm run bench -- scale`:
//   node test/bench/typha/build.mjs           builds what is missing
//   node test/bench/typha/build.mjs --where   prints as JSON where each is, and Calico's CRDs; builds nothing
// They go to $XDG_CACHE_HOME (~/.cache). Exit code 3: skipped.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import {
  buildPrograms,
  CACHE,
  findProgram,
  moduleFolder,
  requiredVersion,
} from '../../support/go-programs.mjs'

const MODULE = fileURLToPath(new URL('.', import.meta.url))
const CALICO = 'github.com/projectcalico/calico'
const folder = join(CACHE, 'bench', `typha-${requiredVersion(MODULE, CALICO)}`)
const programs = [
  ['calico-typha', `${CALICO}/typha/cmd/calico-typha`],
  ['typha-readers', './readers'],
].map(([name, main]) => ({ name, main, module: MODULE, ldflags: '-s -w' }))

if (process.argv.includes('--where')) console.log(JSON.stringify(where()))
else process.exitCode = await buildPrograms({ programs, folder })

function where() {
  const found = Object.fromEntries(programs.map(({ name }) => [name, findProgram(name, [folder])]))
  const isThere = Object.values(found).every(path => path !== undefined)
  return isThere ? { ...found, crds: join(moduleFolder(MODULE, CALICO), 'libcalico-go/config/crd') } : {}
}
