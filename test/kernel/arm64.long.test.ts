import { execFileSync, spawnSync } from 'node:child_process'
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ARM64_MISSING, ARM64_NODE } from '../support/arm64.ts'
import { patientMs } from '../support/patience.ts'

/* The image for arm64, which `npm run image -- --cross` builds, and the tests of codecs and of the addon in it, under qemu-user. */

const TOP = fileURLToPath(new URL('../..', import.meta.url))
const OBJECTS = [`--source=file:${TOP}deploy/examples`, '--hostname-override=example-node']
const folder = mkdtempSync(join(tmpdir(), 'kprobe-arm64-'))
/** For packages in CommonJS that a module bundles. */
const REQUIRE = "import { createRequire as from } from 'node:module'; const require = from(import.meta.url)"
/** The unpacked layers, and a program that runs their Node.js with their libraries alone. */
const root = join(folder, 'root')
const node = join(folder, 'node')
const program = join(root, 'opt/kprobe/kprobe.mjs')

function run(...args: readonly string[]) {
  const options = { encoding: 'utf8', timeout: patientMs(60_000) } as const
  const { status, stdout, stderr } = spawnSync(node, args, options)
  return { status, stdout, stderr }
}

afterAll(() => rmSync(folder, { recursive: true, force: true }))

describe.skipIf(ARM64_MISSING !== '')(`the image for arm64${ARM64_MISSING}`, () => {
  let platform = ''

  beforeAll(() => {
    const layout = join(folder, 'layout')
    const flags = ['--no-build', '--json', '--uncompressed', `--cross=${ARM64_NODE}`, `--output=${layout}`]
    const image = spawnSync(process.execPath, [join(TOP, 'deploy/image/main.mjs'), ...flags], {
      encoding: 'utf8',
    })
    expect(image.status, image.stderr).toBe(0)
    platform = JSON.parse(image.stdout).platform
    mkdirSync(root)
    const blob = (digest: string) => join(layout, 'blobs', digest.replace(':', '/'))
    const readJson = (path: string) => JSON.parse(readFileSync(path, 'utf8'))
    const [{ digest }] = readJson(join(layout, 'index.json')).manifests
    for (const layer of readJson(blob(digest)).layers)
      execFileSync('tar', ['-xf', blob(layer.digest), '-C', root])
    const script = `#!/bin/sh\nexec qemu-aarch64-static -L ${root} ${root}/usr/bin/node "$@"\n`
    writeFileSync(node, script, { mode: 0o755 })
  })

  it('has Node.js, addon, launcher and libraries of arm64, and starts without compiled code', () => {
    expect(platform).toBe('linux/arm64')
    const names = ['usr/bin/node', 'opt/kprobe/kprobe.node', 'usr/local/bin/kprobe', 'lib/libc.so.6']
    for (const name of names) expect(readFileSync(join(root, name)).readUInt16LE(18), name).toBe(0xb7)
    const { version } = JSON.parse(readFileSync(join(TOP, 'dist/build.json'), 'utf8'))
    expect(run(program, '--version')).toMatchObject({ status: 0, stdout: expect.stringContaining(version) })
  })

  it("starts beside the compiled code of this machine, at which arm64's V8 would crash", () => {
    const name = `program.${process.arch}.cache`
    copyFileSync(join(TOP, 'dist', name), join(root, 'opt/kprobe', name))
    expect(run(program, '--version').status).toBe(0)
    copyFileSync(join(TOP, 'dist', name), join(root, 'opt/kprobe/program.arm64.cache'))
    expect(run(program, '--version').status).not.toBe(0)
    rmSync(join(root, 'opt/kprobe/program.arm64.cache'))
  })

  it('computes the same Services, byte for byte', () => {
    const args = ['api', '--print', ...OBJECTS]
    const here = spawnSync(process.execPath, [join(TOP, 'dist/kprobe.mjs'), ...args], { encoding: 'utf8' })
    expect(here.stdout).toContain('"Namespace":"shop"')
    expect(run(program, ...args)).toMatchObject({ status: 0, stdout: here.stdout })
  })

  it('loads its addon, and names the protocol that the emulator does not translate', () => {
    const { status, stderr } = run(program, 'run', '--once', ...OBJECTS)
    expect([status, stderr]).toEqual([1, expect.stringContaining('socket(AF_NETLINK, 12): EPROTONOSUPPORT')])
  })

  it('passes the tests of codecs and of the addon', async () => {
    // Where the import of esbuild is found, which stays outside.
    const outfile = join(TOP, '.cache/arm64-tests.mjs')
    await build({
      entryPoints: [join(TOP, 'test/support/bundled-tests.ts')],
      outfile,
      bundle: true,
      platform: 'node',
      format: 'esm',
      alias: { vitest: join(TOP, 'test/support/bundled-vitest.ts') },
      external: ['esbuild'],
      banner: { js: REQUIRE },
      logLevel: 'error',
    })
    const addon = join(root, 'opt/kprobe/kprobe.node')
    const env = { ...process.env, KPROBE_TEST_ADDON: addon, KPROBE_QUICK: '1' }
    const { stdout, stderr } = spawnSync(node, [outfile, node], { encoding: 'utf8', env })
    rmSync(outfile)
    const [last = '', ...failed] = stdout.trim().split('\n').reverse()
    expect({ failed, stderr }).toEqual({ failed: [], stderr: '' })
    const { arch, files, pass } = JSON.parse(last)
    expect([arch, files, pass > 150]).toEqual(['arm64', 11, true])
  })
})
