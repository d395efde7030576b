import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { patientMs } from '../support/patience.ts'

const TOP = fileURLToPath(new URL('../..', import.meta.url))
let root: string

beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'kprobe-image-'))
  execFileSync('sh', ['deploy/image/rootfs.sh', root, process.execPath], { cwd: TOP })
  cpSync(join(TOP, 'deploy/examples'), join(root, 'etc/examples'), { recursive: true })
})

afterAll(() => rmSync(root, { recursive: true, force: true }))

const DOCKERFILE = readFileSync(join(TOP, 'deploy/image/Dockerfile'), 'utf8')
const PAGE = readFileSync(join(TOP, 'docs/image.md'), 'utf8')

const ONCE = ['run', '--source=file:/etc/examples', '--hostname-override=example-node', '--once'] as const

/**
 * Runs kprobe in the image's file system, read-only, with these capabilities and no way to gain others; beside them
 * only the one by which the test changes the root.
 */
function inImage(capabilities: readonly string[], ...argv: readonly string[]) {
  return startInImage('/usr/local/bin/kprobe', capabilities, argv)
}

function startInImage(file: string, capabilities: readonly string[], argv: readonly string[]) {
  const bounding = ['-all', '+sys_chroot', ...capabilities.map(name => `+${name}`)].join(',')
  const script = [
    'set -e',
    'mount --rbind "$1" "$1"',
    'mount --rbind /proc "$1/proc"',
    'mount -o remount,bind,ro "$1"',
    'root=$1; bounding=$2; file=$3; shift 3',
    'exec setpriv --bounding-set "$bounding" --inh-caps -all --no-new-privs \\',
    '  chroot "$root" "$file" "$@"',
  ].join('\n')
  return spawnSync('unshare', ['-Urnm', 'sh', '-c', script, 'sh', root, bounding, file, ...argv], {
    encoding: 'utf8',
    timeout: patientMs(30_000),
    env: { PATH: process.env.PATH },
  })
}

it('holds Node, kprobe and their libraries, and no shell', () => {
  const names = readdirSync(root, { recursive: true }).map(String)
  expect(names.filter(name => /(^|\/)(sh|bash|dash|busybox|apt|dpkg|npm)$/.test(name))).toEqual([])
  expect(existsSync(join(root, 'opt/kprobe/kprobe.node'))).toBe(true)
})

it('is described by docs/image.md: its arguments, its stages and its files', () => {
  const matches = (text: string, pattern: RegExp) =>
    [...text.matchAll(pattern)].map(([, found = '']) => found)
  const given = matches(PAGE, /--build-arg (\w+)=/g)
  const listed = matches(PAGE, /^\| `([A-Z_]+)` \|/gm)
  expect([...new Set(matches(DOCKERFILE, /^ARG (\w+)/gm))].sort()).toEqual([...listed].sort())
  expect(given.filter(name => !listed.includes(name))).toEqual([])
  const stages = matches(DOCKERFILE, / AS (\w+)$/gm)
  for (const target of matches(PAGE, /--target (\w+)/g)) expect(stages).toContain(target)
  const paths = matches(PAGE, /^\| (`\/.*?`) \|/gm).flatMap(cell => matches(cell, /`(\/[^`]+)`/g))
  expect(paths.length).toBeGreaterThan(5)
  expect(paths.filter(path => !existsSync(join(root, path)))).toEqual([])
})

it('is built from files that are there and that the build context has', () => {
  const ignored = readFileSync(join(TOP, '.dockerignore'), 'utf8').split('\n')
  const copied = [...DOCKERFILE.matchAll(/^COPY ([^-\n].*) \S+$/gm)].flatMap(([, names = '']) =>
    names.split(' '),
  )
  expect(copied).toContain('package.json')
  for (const name of [...copied, 'deploy/image/rootfs.sh', 'deploy/build.mjs', 'native', 'src']) {
    expect(existsSync(join(TOP, name)), name).toBe(true)
    expect(ignored).not.toContain(name.split('/')[0])
  }
})

it('programs the kernel with NET_ADMIN alone, from a read-only root (F113)', () => {
  const { status, stderr, stdout } = inImage(['net_admin'], ...ONCE)
  expect({ status, stdout }).toEqual({ status: 0, stdout: '' })
  expect(stderr).toContain('first sync complete')
})

it('names the capability that it lacks (F114)', () => {
  const { status, stderr } = inImage([], ...ONCE)
  expect(status).toBe(1)
  expect(stderr).toContain('CAP_NET_ADMIN')
})

it('runs as kube-proxy does, with its command and its arguments', () => {
  const [, ...flags] = ONCE
  const { status, stderr, stdout } = startInImage('/usr/local/bin/kube-proxy', ['net_admin'], flags)
  expect({ status, stdout }).toEqual({ status: 0, stdout: '' })
  expect(stderr).toContain('first sync complete')
})
