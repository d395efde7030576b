/* npm run drill [-- SEED]: ten broken nodes with one fault each, in private namespaces. `kprobe status` alone has to tell the
   fault of each; on a terminal, a reader guesses first. The seed chooses the faults and their order. */
import { spawn, spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs'
import { createInterface } from 'node:readline/promises'
import { setTimeout as pause } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { FAULTS } from './faults.mjs'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const KPROBE = `${ROOT}dist/kprobe.mjs`
const FOLDER = '/run/drill'
const SOCKET = `${FOLDER}/admin.sock`
const NODES = 10
/** A busy machine starts a daemon slowly. */
const PATIENCE_MS = 60_000

const [what = `${Date.now() % 100_000}`, name = ''] = process.argv.slice(2)
if (what === 'inside') await breakNode(FAULTS.find(fault => fault.name === name))
else process.exitCode = (await drill(Number(what))) ? 0 : 1

/** Gives whether the status of every node tells its fault, and no other. */
async function drill(seed) {
  const faults = shuffled(FAULTS, seed).slice(0, Number(process.env.KPROBE_DRILL_NODES ?? NODES))
  process.stdout.write(`seed ${seed}: npm run drill -- ${seed} repeats it\n`)
  const asks = process.stdin.isTTY === true && process.stdout.isTTY === true
  const reader = asks ? createInterface(process.stdin, process.stdout) : undefined
  if (asks) process.stdout.write(FAULTS.map((fault, at) => `${at + 1}  ${fault.name}\n`).join(''))
  let missed = 0
  let guessed = 0
  for (const [at, fault] of faults.entries()) {
    const screen = screenOf(fault)
    process.stdout.write(`\nnode ${at + 1} of ${faults.length}\n${screen}`)
    if (reader !== undefined) {
      const guess = Number(await reader.question(`which fault, 1 to ${FAULTS.length}? `))
      if (FAULTS[guess - 1] === fault) guessed++
    }
    const told = FAULTS.filter(each => each.told.test(unwrapped(screen))).map(each => each.name)
    const isTold = told.length === 1 && told[0] === fault.name
    if (!isTold) missed++
    process.stdout.write(`${isTold ? 'told' : `MISSED (${told.join(', ')})`}: ${fault.name}\n`)
  }
  reader?.close()
  process.stdout.write(`\n${faults.length - missed} of ${faults.length} faults are told by kprobe status\n`)
  if (asks) process.stdout.write(`you told ${guessed}\n`)
  return missed === 0
}

/** Fisher and Yates, with a linear congruential generator. */
function shuffled(list, seed) {
  const items = [...list]
  let state = seed >>> 0
  for (let at = items.length - 1; at > 0; at--) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    const other = Math.floor((state / 2 ** 32) * (at + 1))
    ;[items[at], items[other]] = [items[other], items[at]]
  }
  return items
}

/** Makes a broken node, and gives the screen of `kprobe status` there. All of it ends with the process. */
function screenOf({ name }) {
  const spaces = ['-Urnmpf', '--mount-proc', '--kill-child', process.execPath]
  const { status, stdout, stderr } = spawnSync(
    'unshare',
    [...spaces, fileURLToPath(import.meta.url), 'inside', name],
    { encoding: 'utf8' },
  )
  if (status !== 0) throw new Error(`${name}: ${stderr}`)
  return stdout
}

/** Joins the lines of a problem. */
function unwrapped(screen) {
  return screen.replace(/\n {9,}/g, ' ')
}

async function breakNode(fault) {
  run('mount', '-t', 'tmpfs', 'drill', '/run')
  mkdirSync(FOLDER)
  run('ip', 'link', 'set', 'lo', 'up')
  run('ip', 'link', 'add', 'node0', 'type', 'veth', 'peer', 'name', 'uplink0')
  run('ip', 'address', 'add', '192.0.2.10/24', 'dev', 'node0')
  run('ip', 'link', 'set', 'node0', 'up')
  run('ip', 'link', 'set', 'uplink0', 'up')
  writeFileSync('/proc/sys/net/ipv4/ip_forward', '1')
  cpSync(`${ROOT}deploy/demo/objects.yaml`, `${FOLDER}/objects/objects.yaml`)
  const node = { folder: FOLDER }
  const daemon = startDaemon(fault, node)
  const serves = fault.break !== undefined
  if (serves) await until(() => status().verdict === 'well')
  await fault.break?.({ ...node, daemon })
  await until(() => fault.told.test(unwrapped(screen())))
  process.stdout.write(screen())
  process.exit()
}

function startDaemon({ source, around = [] }, node) {
  const flags = source?.(node) ?? [`--source=file:${FOLDER}/objects`]
  const log = openSync(`${FOLDER}/log`, 'w')
  const [program, ...argv] = [
    ...around,
    process.execPath,
    KPROBE,
    'run',
    ...flags,
    '--hostname-override=demo',
    '--cluster-cidr=10.244.0.0/16',
    `--admin-socket=${SOCKET}`,
  ]
  return spawn(program, argv, { stdio: ['ignore', log, log] })
}

function run(program, ...argv) {
  const { status, stderr } = spawnSync(program, argv, { encoding: 'utf8' })
  if (status !== 0) throw new Error(`${program} ${argv.join(' ')}: ${stderr}`)
}

function kprobeStatus(...flags) {
  return spawnSync(process.execPath, [KPROBE, 'status', `--admin-socket=${SOCKET}`, ...flags], {
    encoding: 'utf8',
  }).stdout
}

function status() {
  const answer = kprobeStatus('--output=json')
  return answer === '' ? {} : JSON.parse(answer)
}

function screen() {
  return kprobeStatus()
}

/** Waits until `isTrue`, or gives up: the last screen then shows the reason. */
async function until(isTrue) {
  for (const endMs = performance.now() + PATIENCE_MS; performance.now() < endMs && !isTrue(); )
    await pause(200)
  if (!isTrue()) process.stderr.write(`${screen()}${readFileSync(`${FOLDER}/log`, 'utf8')}`)
}
