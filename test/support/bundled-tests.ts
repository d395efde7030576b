import { startTests, type VitestRunner } from '@vitest/runner'

/*
 * Runs test files without vitest itself, whose own programs are for one architecture: test/kernel/arm64.long.test.ts bundles
 * this for the Node.js of another one. Arguments: the Node.js that tests start for their children, then names of FILES.
 */

const FILES: Readonly<Record<string, () => Promise<unknown>>> = {
  attribute: () => import('../unit/netlink/attribute.test.ts'),
  batch: () => import('../unit/netlink/batch.test.ts'),
  message: () => import('../unit/netlink/message.test.ts'),
  schema: () => import('../unit/netlink/schema.test.ts'),
  native: () => import('../unit/netlink/native.test.ts'),
  decoder: () => import('../unit/wire/protobuf/decoder.test.ts'),
  encoder: () => import('../unit/wire/protobuf/encoder.test.ts'),
  'nft-codec': () => import('../fuzz/nft-codec.test.ts'),
  'ipvs-codec': () => import('../fuzz/ipvs-codec.test.ts'),
  wire: () => import('../fuzz/wire.test.ts'),
  'xt-rule': () => import('../fuzz/xt-rule.test.ts'),
}
/** It starts esbuild, which is a program of the machine that bundled this. */
const NEEDS_ESBUILD = 'is found beside the bundle'

const [, , node = process.execPath] = process.argv
process.execPath = node

const states: Record<string, number> = {}
const runner: VitestRunner = {
  config: {
    root: '/',
    setupFiles: [],
    name: undefined,
    passWithNoTests: false,
    testNamePattern: new RegExp(`^(?!.*${NEEDS_ESBUILD})`),
    allowOnly: false,
    sequence: { seed: 1, hooks: 'stack', setupFiles: 'list' },
    chaiConfig: undefined,
    maxConcurrency: 1,
    testTimeout: 0,
    hookTimeout: 0,
    retry: 0,
    includeTaskLocation: false,
    tags: [],
    tagsFilter: undefined,
    strictTags: false,
  },
  importFile: path => FILES[path]?.(),
  onAfterRunTask({ name, result }) {
    const state = result?.state ?? 'none'
    states[state] = (states[state] ?? 0) + 1
    if (state === 'fail') console.log(`failed: ${name}: ${result?.errors?.[0]?.stack}`)
  },
}
const files = await startTests(Object.keys(FILES), runner)
const failed = files.filter(({ result }) => result?.state !== 'pass')
for (const { name, result } of failed) console.log(`failed: ${name}: ${result?.errors?.[0]?.stack ?? ''}`)
console.log(JSON.stringify({ arch: process.arch, files: files.length, ...states }))
process.exitCode = failed.length === 0 ? 0 : 1
