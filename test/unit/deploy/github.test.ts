import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { runCommand } from '../../../src/commands.ts'
import { FakeIo } from '../../support/fake-io.ts'

const ROOT = fileURLToPath(new URL('../../../', import.meta.url))
const read = (path: string) => readFileSync(ROOT + path, 'utf8')
const namesIn = (folder: string) => readdirSync(ROOT + folder)

interface Step {
  readonly name?: string
  readonly uses?: string
  readonly run?: string
  readonly with?: Readonly<Record<string, unknown>>
}

/** A job with steps. Another has `uses` instead: it is a workflow of this project. */
interface Job {
  readonly uses?: string
  readonly 'runs-on': string
  readonly 'timeout-minutes': number
  readonly needs?: string | readonly string[]
  readonly permissions?: Readonly<Record<string, string>>
  readonly steps: readonly Step[]
}

interface Workflow {
  readonly on: unknown
  readonly permissions: Readonly<Record<string, string>>
  readonly jobs: Readonly<Record<string, Job>>
}

const WORKFLOWS = namesIn('.github/workflows').map(name => {
  const text = read(`.github/workflows/${name}`)
  const workflow: Workflow = parse(text)
  const all = Object.values(workflow.jobs)
  const called = all.flatMap(({ uses = [] }) => uses)
  return { name, text, workflow, called, jobs: all.filter(({ uses }) => uses === undefined) }
})
const named = (name: string) => WORKFLOWS.find(each => each.name === name)

describe.each(WORKFLOWS)('$name', ({ text, workflow, jobs, called }) => {
  const runs = jobs.flatMap(({ steps }) => steps.flatMap(({ run = [] }) => run))

  it('pins every action by its hash, with the version beside it', () => {
    const uses = [...text.matchAll(/uses: (.*)/g)].flatMap(([, action = '']) =>
      called.includes(action) ? [] : action,
    )
    expect(uses.length).toBeGreaterThan(1)
    for (const action of uses) expect(action).toMatch(/^[\w-]+\/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$/)
  })

  it('may read, and write only where a job says so', () => {
    expect(workflow.permissions).toEqual({ contents: 'read' })
    const writing = jobs.filter(({ permissions }) => permissions?.contents === 'write')
    expect(writing.length).toBeLessThanOrEqual(1)
    for (const { steps } of jobs)
      for (const step of steps)
        if (step.uses?.startsWith('actions/checkout@'))
          expect(step.with).toMatchObject({ 'persist-credentials': false })
  })

  it('has jobs with a limit, after jobs that exist', () => {
    for (const { needs, 'timeout-minutes': minutes } of jobs) {
      expect(minutes).toBeGreaterThan(0)
      expect(Object.keys(workflow.jobs)).toEqual(expect.arrayContaining([needs ?? []].flat()))
    }
    for (const path of called) {
      const { on } = named(path.replace('./.github/workflows/', ''))?.workflow ?? {}
      expect(on).toHaveProperty('workflow_call')
    }
  })

  it('runs what a shell can read, and puts nothing from outside into it', () => {
    for (const run of runs) {
      execFileSync('bash', ['-n'], { input: run })
      expect(run).not.toContain('${{')
    }
  })

  it('runs scripts and files that exist', () => {
    const { scripts } = JSON.parse(read('package.json'))
    for (const [, script = ''] of runs.join('\n').matchAll(/npm run (?:-s )?([\w:]+)/g))
      expect(scripts).toHaveProperty([script])
    for (const [path] of runs.join('\n').matchAll(/(?:^|(?<=\s))(?:deploy|test|\.ci)\/[\w./-]+/gm))
      expect(existsSync(ROOT + path), path).toBe(true)
  })
})

describe('the workflows', () => {
  it('run .ci/run for every change', () => {
    const ci = named('ci.yml')
    expect(ci?.workflow.on).toMatchObject({ pull_request: null, push: { branches: ['main'] } })
    expect(ci?.text).toContain(' .ci/run\n')
  })

  it('publish nothing before .ci/run has passed for the tag', () => {
    const { checks, publish } = named('release.yml')?.workflow.jobs ?? {}
    expect(checks).toEqual({ uses: './.github/workflows/ci.yml' })
    expect(publish?.needs).toEqual(['checks', 'image'])
  })

  it.each([
    ['registry.example/kprobe', 0],
    ['docker.io/user/kprobe', 0],
    ['registry:5000/kprobe', 0],
    ['localhost/kprobe', 0],
    ['user/kprobe', 1],
    ['user/kprobe.v1', 1],
    ['kprobe', 1],
    ['kprobe.v1', 1],
  ])('take the image %s only with its registry', (image, status) => {
    const steps = named('release.yml')?.workflow.jobs.image?.steps ?? []
    const { run = 'exit 2' } = steps.find(({ name }) => name === 'The image names its registry') ?? {}
    const ended = spawnSync('bash', ['-e', '-c', run], { encoding: 'utf8', env: { IMAGE: image } })
    expect(ended.status).toBe(status)
    expect(ended.stdout).toContain(status === 0 ? '' : `The variable IMAGE is ${image}, without a registry`)
  })

  it('publish the files that npm run image writes for a tag', () => {
    const release = named('release.yml')
    expect(release?.workflow.on).toEqual({ push: { tags: ['v*'] } })
    const output = 'kprobe-VERSION-ARCHITECTURE.tar'
    expect(read('docs/image.md')).toContain(output)
    expect(release?.text).toContain(
      output.replace('VERSION', '$version').replace('ARCHITECTURE', '$architecture'),
    )
    expect(release?.text).toMatch(/kprobe-\*-\$\{\{ matrix\.architecture \}\}\.cdx\.json\n/)
  })
})

interface Form {
  readonly name: string
  readonly description: string
  readonly body: readonly {
    readonly type: string
    readonly id?: string
    readonly attributes: { readonly label?: string; readonly value?: string; readonly description?: string }
  }[]
}

describe('the issue forms', () => {
  const forms = namesIn('.github/ISSUE_TEMPLATE').filter(name => name !== 'config.yml')
  const formOf = (name: string): Form => parse(read(`.github/ISSUE_TEMPLATE/${name}`))

  it.each(forms)('%s has what the site asks for', name => {
    const form = formOf(name)
    expect(form.name).not.toBe('')
    expect(form.description).not.toBe('')
    const fields = form.body.filter(({ type }) => type !== 'markdown')
    const ids = fields.map(({ id }) => id)
    expect(new Set(ids).size).toBe(fields.length)
    expect(ids).not.toContain(undefined)
    for (const { type, attributes } of form.body) {
      expect(['markdown', 'textarea', 'input']).toContain(type)
      expect(type === 'markdown' ? attributes.value : attributes.label).toMatch(/\w/)
    }
  })

  it('ask for commands and pages that exist', async () => {
    const text = forms.map(name => read(`.github/ISSUE_TEMPLATE/${name}`)).join('\n')
    const commands = [...text.matchAll(/\bkprobe ([a-z]+) (?:-|as)|label: kprobe ([a-z]+)/g)].map(
      ([, one, other]) => one ?? other,
    )
    expect(commands.length).toBeGreaterThanOrEqual(3)
    for (const name of commands) expect(await runCommand([name ?? '', '--help'], new FakeIo()), name).toBe(0)
    for (const [path] of text.matchAll(/[\w/-]+\.md/g)) expect(existsSync(ROOT + path), path).toBe(true)
  })
})
