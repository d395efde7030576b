import { beforeEach, describe, expect, it } from 'vitest'
import { Troubles } from '../../../../src/source/kube/kube-source.ts'
import type { Trouble } from '../../../../src/source/kube/reflector-state.ts'
import { problemText } from '../../../../src/source/source.ts'

const SERVER: Trouble = { scope: 'server', text: 'refused' }
const DENIED: Trouble = { scope: 'resource', text: 'denied' }

let said: string[]
let isSynced: boolean
let troubles: Troubles

beforeEach(() => {
  said = []
  isSynced = true
  troubles = new Troubles(
    { server: 'https://api' },
    problem => said.push(`${problem.kind} ${problem.location}: ${problemText(problem)}`),
    () => isSynced,
  )
})

describe('troubles', () => {
  it('are over when a relay answers, where relays are asked', () => {
    troubles = new Troubles(
      { server: 'https://api', isDirect: false },
      ({ text }) => said.push(text),
      () => isSynced,
    )
    troubles.set('services', SERVER)
    troubles.set('services', undefined)
    expect(said[1]).toBe('a relay answers again')
  })

  it('of the server are said once for all resources, and once when the last of them is over', () => {
    troubles.set('services', SERVER)
    troubles.set('nodes', SERVER)
    troubles.set('nodes', { ...SERVER, text: 'status 503' })
    expect(said).toEqual(['failed https://api: refused; the last known state stays in use; retrying'])
    troubles.set('services', undefined)
    expect(said.length).toBe(1)
    troubles.set('nodes', undefined)
    expect(said.slice(1)).toEqual(['recovered https://api: the API server answers again'])
    expect(troubles.text).toBeUndefined()
  })

  it('say before the first sync that nothing is known yet', () => {
    isSynced = false
    troubles.set('services', SERVER)
    expect(said).toEqual(['failed https://api: refused; no Services known yet, retrying'])
  })

  it('of a resource are its own', () => {
    troubles.set('services', DENIED)
    troubles.set('nodes', DENIED)
    troubles.set('services', undefined)
    expect(said).toEqual([
      'failed services: denied; the last known state stays in use; retrying',
      'failed nodes: denied; the last known state stays in use; retrying',
      'recovered services: read again',
    ])
    expect(troubles.text).toBe('nodes: denied')
  })

  it('of both sorts follow one another without being said twice', () => {
    troubles.set('services', DENIED)
    troubles.set('services', SERVER)
    expect(troubles.text).toBe('https://api: refused')
    troubles.set('services', DENIED)
    troubles.set('services', undefined)
    expect(said.map(line => line.split(':')[0])).toEqual([
      'failed services',
      'failed https',
      'recovered https',
      'recovered services',
    ])
  })

  it('that are none stand in no status', () => {
    troubles.set('servicecidrs', { scope: 'absent', text: 'not served' })
    expect(troubles.text).toBeUndefined()
    expect(said).toEqual(['absent servicecidrs: not served'])
  })

  it('with optional resources are no failures, which would end a command that reads once', () => {
    troubles.set('servicecidrs', { scope: 'denied', text: 'denied' })
    troubles.set('servicecidrs', undefined)
    expect(said).toEqual(['absent servicecidrs: denied', 'recovered servicecidrs: read again'])
  })
})
