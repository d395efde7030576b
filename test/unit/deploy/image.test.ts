import { execFileSync } from 'node:child_process'
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { temporaryFolder } from '../../support/folder.ts'

const load = (name: string) => import(new URL(`../../../deploy/image/${name}.mjs`, import.meta.url).href)
const { withFolders } = await load('layout')
const { readElf, librariesOf } = await load('libraries')
const { crossMachine, thisMachine } = await load('machine')
const { emptyFolders } = await load('root-files')
const { readReference } = await load('reference')
const { sbomOf } = await load('sbom')

it('an image has each folder of its files once, before them', () => {
  const file = (path: string) => ({ kind: 'file', path, mode: 0o644, data: Buffer.alloc(0) })
  const tmp = { kind: 'folder', path: 'tmp', mode: 0o1777 }
  const entries = withFolders([file('a/b/d'), file('tmp/e'), tmp, file('a/b/c')])
  const lines = entries.map(({ path, mode }: { path: string; mode: number }) => `${path} ${mode.toString(8)}`)
  expect(lines).toEqual(['a 755', 'a/b 755', 'a/b/c 644', 'a/b/d 644', 'tmp 1777', 'tmp/e 644'])
})

it.each([
  [true, 0o1777],
  [false, 0o755],
])('an image with --nonroot %s has a state folder of mode %i', (nonroot, mode) => {
  expect(emptyFolders(nonroot)).toContainEqual({ kind: 'folder', path: 'run/kprobe', mode })
})

describe('the name of an image', () => {
  it.each([
    ['kprobe', 'docker.io/library/kprobe:1.2', 'kprobe:1.2', '1.2'],
    ['me/kprobe:x', 'docker.io/me/kprobe:x', 'me/kprobe:x', 'x'],
    ['registry.example/a/b', 'registry.example/a/b:1.2', 'registry.example/a/b:1.2', '1.2'],
    ['localhost:5000/b:y', 'localhost:5000/b:y', 'localhost:5000/b:y', 'y'],
    ['registry:5000/b', 'registry:5000/b:1.2', 'registry:5000/b:1.2', '1.2'],
  ])('%s is %s', (text, full, familiar, tag) => {
    expect(readReference(text, '1.2')).toEqual({ full, familiar, tag })
  })

  it.each(['', 'Kprobe', 'a//b', 'a:', 'a:b c', 'registry.example/', 'a@sha256:00'])('%j is none', text => {
    expect(() => readReference(text, '1.2')).toThrow(`--tag ${text}: `)
  })
})

describe('an ELF file', () => {
  it('names its architecture and its loader, and that its libraries', () => {
    const found = readElf(process.execPath)
    expect(found.architecture).toBe(process.arch === 'x64' ? 'amd64' : process.arch)
    const libraries: readonly string[] = librariesOf([process.execPath], thisMachine())
    expect(libraries).toContain(found.interpreter)
    expect(libraries.some(path => /\/libc\.(so|musl)/.test(path))).toBe(true)
  })

  it.runIf(process.arch === 'x64')('gets no library that is built for the processor of this machine', () => {
    const folder = temporaryFolder()
    const newer = join(folder, 'glibc-hwcaps/x86-64-v2')
    mkdirSync(newer, { recursive: true })
    const cc = (...argv: string[]) =>
      execFileSync('cc', ['-x', 'c', ...argv], { cwd: folder, input: 'int main() { return 0; }' })
    cc('-shared', '-fPIC', '-o', 'libown.so', '-')
    copyFileSync(join(folder, 'libown.so'), join(newer, 'libown.so'))
    cc('-o', 'program', '-', '-Wl,--no-as-needed', '-L.', '-lown', `-Wl,-rpath,${folder}`)
    expect(librariesOf([join(folder, 'program')], thisMachine())).toContain(join(folder, 'libown.so'))
  })

  it('of this architecture is none for --cross', () => {
    const folder = temporaryFolder()
    for (const name of ['bin', 'include/node']) mkdirSync(join(folder, name), { recursive: true })
    copyFileSync(process.execPath, join(folder, 'bin/node'))
    writeFileSync(join(folder, 'include/node/node_api.h'), '')
    expect(() => crossMachine(folder)).toThrow(/^--cross .*: is for \w+; on this machine it can be /)
  })

  it('is refused by name when it is none, or of another machine', () => {
    const path = join(temporaryFolder(), 'program')
    writeFileSync(path, '#!/bin/sh\n')
    expect(() => readElf(path)).toThrow(`${path} is no ELF file`)
    const header = Buffer.alloc(64)
    header.write('\x7fELF\x01\x01', 'latin1')
    header.writeUInt16LE(0x28, 18)
    writeFileSync(path, header)
    expect(() => readElf(path)).toThrow(`${path} is for a machine that kprobe has no images for`)
  })
})

describe('a bill of materials', () => {
  const lock = {
    packages: {
      '': { dependencies: { a: '1' }, optionalDependencies: { c: '1' } },
      'node_modules/a': { version: '1.0.0', license: 'MIT', dependencies: { b: '2', c: '1' } },
      'node_modules/a/node_modules/b': { version: '2.0.0', license: '(MIT OR ISC)' },
      'node_modules/b': { version: '1.0.0' },
    },
  }
  const image = {
    name: 'it',
    version: '0.1.0',
    license: 'Apache-2.0',
    created: '2026-01-01T00:00:00Z',
    lock,
    packages: ['node_modules/a', 'node_modules/a/node_modules/b', 'node_modules/b'],
    daemonPackages: ['node_modules/a'],
    node: { versions: { node: '20.0.0', v8: '11.3.1', modules: '115' }, sha256: 'ff' },
    files: [{ path: '/lib/libx.so', sha256: 'ee'.repeat(32), owner: undefined }],
    system: '',
  }

  it('says what depends on what, as npm resolves names, and leaves out what is not in the program', () => {
    const { dependencies, components } = sbomOf(image)
    const node = 'pkg:generic/node@20.0.0'
    expect(dependencies.slice(0, 3)).toEqual([
      { ref: 'pkg:npm/it@0.1.0', dependsOn: ['a@1.0.0', node] },
      { ref: 'a@1.0.0', dependsOn: ['b@2.0.0'] },
      { ref: 'b@2.0.0', dependsOn: [] },
    ])
    expect(components.slice(0, 2).map(({ properties }: { properties: unknown }) => properties)).toEqual(
      ['daemon', 'commands'].map(value => [{ name: 'kprobe:loaded-by', value }]),
    )
    expect(components[1].licenses).toEqual([{ expression: '(MIT OR ISC)' }])
    expect(components[3].components).toEqual([expect.objectContaining({ name: 'v8', version: '11.3.1' })])
    expect(components[4]).toMatchObject({ type: 'file', name: '/lib/libx.so' })
  })

  it('has a serial number of its content', () => {
    const { serialNumber } = sbomOf(image)
    expect(serialNumber).toMatch(
      /^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/,
    )
    expect(sbomOf(image).serialNumber).toBe(serialNumber)
    expect(sbomOf({ ...image, version: '0.2.0' }).serialNumber).not.toBe(serialNumber)
  })

  it('is refused for a package that the lock file does not have', () => {
    expect(() => sbomOf({ ...image, packages: ['node_modules/z'] })).toThrow(
      'package-lock.json has no node_modules/z',
    )
  })
})
