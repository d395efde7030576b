#!/usr/bin/env node
// npm run mutate: changes the source of the rules, and asks whether the proof finds out. See HELP below.
import {
  appendFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
} from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { Worker } from 'node:worker_threads'
import { build } from 'esbuild'
import { loadSource } from '../../deploy/load-source.mjs'

const ROOT = fileURLToPath(new URL('../..', import.meta.url))
const HELP = `npm run mutate -- [--seed N] [--count N] [--file PATH] [--jobs N]

Changes one place of the source of the rules at a time: COUNT places that SEED chooses. For the objects of all
scenarios and of random walks, in nftables, iptables and IPVS mode, it prints what becomes of each change:

  unreached nothing of these reaches the place
  same      no rule differs
  throws    there are no rules; a loop ends after five million turns
  caught    the proof finds a packet that meets another fate
  harmless  rules differ; the proof accepts them, and single packets of every class end where they ended
  missed    a packet ends elsewhere, and the proof does not find it
  hangs     there is no answer within ten minutes

  --seed N      default 1
  --count N     default 200
  --file PATH   only places in files whose path contains PATH
  --at LINE     only places in this line of them
  --jobs N      default 2
  --log PATH    add what is printed to PATH; changes that it has already are not made again
  --help        print this

It exits 1 if one is missed.
`
/** What objects mean here, and the rules that follow from it. What parses objects decides what the proof is asked. */
const TARGETS = [
  [
    'src/model',
    /^(?:claims|frontend|endpoint-choice|memory-caps|node-context|port-frontends|reserved|resolve)\.ts$/,
  ],
  ['src/modes/common', /^(?:detector|expressions|rules|tables)\.ts$/],
  ['src/modes/xt-common', /^(?:layout|rules-parts)\.ts$/],
  ['src/modes/nftables', /^(?:chains|layout|render|render-service|rules)\.ts$/],
  ['src/modes/iptables', /^(?:chains|render|rules|state)\.ts$/],
  ['src/modes/iptables/optimize', /\.ts$/],
  // Not chains.ts, which serves --ipvs-rules=iptables: no rules of that are computed here.
  ['src/modes/ipvs', /^(?:layout|places|render|render-service|rules)\.ts$/],
]
/** Loops that a change may make endless. Those of the tracers follow every packet. */
const COUNTED = /\/src\/(?:model|modes)\/(?!.*\/trace)/
/** The modes whose rules files decide about, the quickest first. */
function modesOf(path) {
  if (path.startsWith('src/modes/nftables/')) return ['nftables']
  if (path.startsWith('src/modes/ipvs/')) return ['ipvs']
  if (path.startsWith('src/modes/iptables/optimize/')) return ['optimized']
  return /\/(?:iptables|xt-common)\//.test(path) ? ['iptables'] : ['nftables', 'iptables']
}

/** What takes a minute on a machine that others keep busy. Loops without an end have ended long before. */
const LIMIT_MS = 600_000

function request() {
  const number = text => {
    if (!/^\d{1,9}$/.test(text)) throw new Error(`${text} is no number`)
    return Number(text)
  }
  try {
    const { values } = parseArgs({
      options: {
        seed: { type: 'string', default: '1' },
        count: { type: 'string', default: '200' },
        jobs: { type: 'string', default: '2' },
        file: { type: 'string', default: '' },
        at: { type: 'string' },
        log: { type: 'string' },
        help: { type: 'boolean', default: false },
      },
    })
    if (values.help) {
      process.stdout.write(HELP)
      process.exit(0)
    }
    const [seed, count, jobs] = [values.seed, values.count, values.jobs].map(number)
    return {
      seed,
      count,
      jobs,
      file: values.file,
      log: values.log,
      at: values.at === undefined ? undefined : number(values.at),
    }
  } catch (error) {
    console.error(error.message)
    process.exit(2)
  }
}

function folder() {
  const cache = join(ROOT, '.cache')
  mkdirSync(cache, { recursive: true })
  return mkdtempSync(join(cache, 'mutate-'))
}

async function main({ seed, count, jobs, file, log, at }) {
  const { chosenFrom, mutationsOf, withCountedLoops, withSwitches } = await loadSource('test/mutate/sites.ts')
  const paths = TARGETS.flatMap(([room, name]) =>
    readdirSync(join(ROOT, room))
      .filter(its => name.test(its))
      .map(its => `${room}/${its}`),
  )
  const texts = new Map(paths.map(path => [path, readFileSync(join(ROOT, path), 'utf8')]))
  const places = [...texts].flatMap(([path, text]) => mutationsOf(path, text))
  const asked = places.filter(its => its.path.includes(file) && (at === undefined || its.line === at))
  const chosen = chosenFrom(asked, { seed, count })
  console.log(`${chosen.length} of ${asked.length} places, seed ${seed}`)
  const written = [...texts].map(([path, text]) => {
    const own = chosen.filter(its => its.path === path)
    return [join(ROOT, path), withSwitches(text, own)]
  })
  const bundled = await bundle(new Map(written), withCountedLoops)
  const judges = Array.from({ length: Math.max(1, jobs) }, () => new Judge(bundled))
  const modes = [...new Set(chosen.flatMap(its => modesOf(its.path)))]
  const original = await judges[0].ask({ act: 'original', modes }, 10 * LIMIT_MS)
  if ('result' in original) throw new Error(`without a change: ${JSON.stringify(original)}`)
  const counts = new Map()
  const known = knownFrom(log)
  for (const result of known.values()) counts.set(result, (counts.get(result) ?? 0) + 1)
  const left = chosen.filter(its => !known.has(nameOf(its)))
  const work = async judge => {
    for (let mutation = left.shift(); mutation !== undefined; mutation = left.shift()) {
      const judgement = await judged(judge, mutation, original)
      counts.set(judgement.result, (counts.get(judgement.result) ?? 0) + 1)
      tell(mutation, judgement, log)
    }
    judge.end()
  }
  await Promise.all(judges.map(work))
  console.log([...counts].map(([result, number]) => `${number} ${result}`).join(', '))
  return counts.has('missed') ? 1 : 0
}

async function judged(judge, { number, path, isAtLoad }, original) {
  const asked = { number, isAtLoad, modes: modesOf(path) }
  const its = isAtLoad ? new Judge(judge.file, number) : judge
  const proved = await its.ask({ act: 'judge', asked, original })
  if (its !== judge) its.end()
  return 'result' in proved ? proved : await judge.ask({ act: 'conclude', proved })
}

/** A thread with the bundle. One that hangs is replaced. */
class Judge {
  file
  #atLoad
  #worker

  constructor(file, atLoad) {
    this.file = file
    this.#atLoad = atLoad
  }

  ask(message, limitMs = LIMIT_MS) {
    const { file } = this
    const workerData = { file, atLoad: this.#atLoad }
    this.#worker ??= new Worker(new URL('worker.mjs', import.meta.url), { workerData })
    const worker = this.#worker
    return new Promise(resolve => {
      const answer = its => {
        clearTimeout(limit)
        worker.off('message', answer).off('error', broken)
        resolve(its)
      }
      const fail = its => {
        this.end()
        answer(its)
      }
      const limit = setTimeout(() => fail({ result: 'hangs' }), limitMs)
      const broken = ({ message }) => fail({ result: 'throws', at: 'load', error: message })
      worker.on('message', answer).on('error', broken)
      worker.postMessage(message)
    })
  }

  end() {
    void this.#worker?.terminate()
    this.#worker = undefined
  }
}

/** Bundles the judge with all mutations; gives the URL. */
async function bundle(texts, withCountedLoops) {
  const outfile = join(out, 'judge.mjs')
  await build({
    absWorkingDir: ROOT,
    entryPoints: ['test/mutate/judge.ts'],
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node20',
    external: ['*.node', 'ffi-rs'],
    banner: {
      js: "import { createRequire as __createRequire } from 'node:module'; const require = __createRequire(import.meta.url);",
    },
    logLevel: 'error',
    plugins: [
      {
        name: 'mutations',
        setup({ onLoad }) {
          onLoad({ filter: /\.ts$/ }, ({ path }) => {
            const text = texts.get(path) ?? readFileSync(path, 'utf8')
            const counted = COUNTED.test(path) ? withCountedLoops(text) : text
            // Files find the scenarios by where they are themselves.
            const contents = counted.replaceAll('import.meta.url', JSON.stringify(pathToFileURL(path).href))
            return { contents, loader: 'ts' }
          })
        },
      },
    ],
  })
  return pathToFileURL(outfile).href
}

/** The place and the change, on one line. */
function nameOf({ path, line, kind, before, after }) {
  const short = text => text.replaceAll(/\s+/g, ' ').slice(0, 100)
  return `${path}:${line}\t${kind}\t${short(before)} -> ${short(after)}`
}

/** Results by change that an earlier run has written. */
function knownFrom(log) {
  if (log === undefined || !existsSync(log)) return new Map()
  const lines = readFileSync(log, 'utf8')
    .split('\n')
    .filter(line => line !== '')
  return new Map(
    lines.map(line => {
      const [result, ...name] = line.split('\t').slice(0, 4)
      return [name.join('\t'), result]
    }),
  )
}

function tell(mutation, { result, at, ...more }, log) {
  const printable = text => text.replaceAll(/[^\x20-\x7e]/g, '.')
  const facts = Object.values(more)
    .map(its => printable(String(its)))
    .join(' ')
  const text = `${result}\t${nameOf(mutation)}\t${at ?? ''} ${facts}`
  console.log(text)
  if (log !== undefined) appendFileSync(log, `${text}\n`)
}

const options = request()
const out = folder()
try {
  process.exitCode = await main(options)
} finally {
  rmSync(out, { recursive: true })
}
