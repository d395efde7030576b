import { useState } from 'preact/hooks'
import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import { useData } from './data.ts'
import { numberText, rateText } from './format.ts'
import { Sign, Trouble } from './parts.tsx'

/** The way of a connection to one Service: the client, the frontend, what decides, and the endpoints. */
export function ServiceView({ service }: { readonly service: string }) {
  const [asked, set] = useState({ from: 'outside', to: '' })
  const [client, type] = useState(asked.from)
  const query = { service, from: asked.from, ...(asked.to === '' ? {} : { to: asked.to }) }
  const shown = useData('path', query, 5_000)
  const path = shown?.data
  return (
    <>
      <p>
        <a href="#services">All Services</a>
      </p>
      <h2>{service}</h2>
      <form
        aria-label="Connection"
        onSubmit={event => {
          event.preventDefault()
          set({ ...asked, from: client.trim() })
        }}
      >
        <label>
          {'Client '}
          <input
            type="text"
            autocomplete="off"
            spellcheck={false}
            value={client}
            onInput={event => type(event.currentTarget.value)}
          />
        </label>
        <label>
          {'Frontend '}
          <select
            value={asked.to === '' ? textAt(path, 'to') : asked.to}
            onChange={event => set({ from: client.trim(), to: event.currentTarget.value })}
          >
            {listAt(path, 'targets').map(target => (
              <option key={textAt(target, 'to')} value={textAt(target, 'to')}>
                {textAt(target, 'label')}
              </option>
            ))}
          </select>
        </label>
        <button type="submit">Show</button>
        <p class="hint">A client is outside, an address, pod/NAMESPACE/NAME or node/NAME.</p>
      </form>
      <Trouble error={shown?.error} />
      {path === undefined ? null : <Path path={path} />}
    </>
  )
}

function Path({ path }: { readonly path: unknown }) {
  const endpoints = listAt(path, 'endpoints')
  const isBroken = fieldOf(path, 'isServed') === false || endpoints.some(isSilent)
  const hasShares = endpoints.some(each => numberAt(each, 'percent') !== undefined)
  const level = isBroken ? 'error' : hasShares ? 'well' : 'warning'
  return (
    <>
      <p class={`verdict answer ${level}`} aria-live="polite">
        <Sign level={level} /> <span>{textAt(path, 'answer')}</span>
      </p>
      {fieldOf(path, 'policy') === undefined ? null : (
        <div class="path">
          <Steps path={path} />
          <Endpoints path={path} />
        </div>
      )}
    </>
  )
}

function isSilent(row: unknown): boolean {
  return (numberAt(row, 'unanswered') ?? 0) * 2 > (numberAt(row, 'connections') ?? 0)
}

/** The steps that decide, large; the rules that carry them out fold away. */
function Steps({ path }: { readonly path: unknown }) {
  const [rules, affinityS] = [listAt(path, 'rules'), numberAt(path, 'affinitySeconds') ?? 0]
  const isLocal = textAt(path, 'policy') === 'local'
  const decisions = [
    isLocal ? 'Local: endpoints on this node alone' : 'Cluster: all usable endpoints',
    ...(affinityS === 0 ? [] : [`a client stays with its endpoint for ${numberText(affinityS)} s`]),
    ...listAt(path, 'reasons').map(String),
  ]
  return (
    <ol class="steps" aria-label="Path">
      <li>
        <small>client</small>
        <strong>{textAt(path, 'from')}</strong>
      </li>
      <li>
        <small>{textAt(path, 'frontend') || 'frontend'}</small>
        <strong>{textAt(path, 'to')}</strong>
        <span>{textAt(path, 'port')}</span>
      </li>
      <li>
        <small>traffic policy</small>
        {decisions.map((text, index) =>
          index === 0 ? <strong key={text}>{text}</strong> : <span key={text}>{text}</span>,
        )}
        {listAt(path, 'notKnown').map(text => (
          <small key={String(text)}>{`not known: ${String(text)}`}</small>
        ))}
        {rules.length === 0 ? null : (
          <details>
            <summary>{`${rules.length} rules that take effect`}</summary>
            <ol>
              {rules.map((rule, index) => (
                <li key={index}>
                  {textAt(rule, 'chain')}: <code>{textAt(rule, 'text')}</code>
                </li>
              ))}
            </ol>
          </details>
        )}
      </li>
    </ol>
  )
}

function Endpoints({ path }: { readonly path: unknown }) {
  const [endpoints, more] = [listAt(path, 'endpoints'), numberAt(path, 'moreEndpoints') ?? 0]
  return (
    <section class="endpoints" aria-label="Endpoints">
      <ul>
        {endpoints.map(row => (
          <Endpoint key={`${textAt(row, 'address')} ${textAt(row, 'slice')}`} row={row} />
        ))}
      </ul>
      {endpoints.length > 0 ? null : <p>no endpoint</p>}
      {more === 0 ? null : <p>{`and ${numberText(more)} more endpoints`}</p>}
    </section>
  )
}

function Endpoint({ row }: { readonly row: unknown }) {
  const [percent, silent] = [numberAt(row, 'percent'), numberAt(row, 'unanswered') ?? 0]
  const connections = numberAt(row, 'connections') ?? 0
  const level = percent === undefined ? 'warning' : isSilent(row) ? 'error' : 'well'
  const facts = [
    textAt(row, 'node') === '' ? '' : `on ${textAt(row, 'node')}`,
    textAt(row, 'zone') === '' ? '' : `in zone ${textAt(row, 'zone')}`,
    numberAt(row, 'perSecond') === undefined ? '' : `${rateText(numberAt(row, 'perSecond'))} new a second`,
    `${fieldOf(row, 'isIn') === true ? 'in' : 'out'}: ${textAt(row, 'reason')}`,
  ]
  return (
    <li class={percent === undefined ? 'out' : undefined}>
      <div>
        <Sign level={level} /> <strong>{textAt(row, 'pod') || textAt(row, 'address')}</strong>
        {textAt(row, 'pod') === '' ? null : <small>{textAt(row, 'address')}</small>}
        <span class="share">{percent === undefined ? '' : `${percent} %`}</span>
      </div>
      {percent === undefined ? null : <meter min={0} max={100} value={percent} aria-label="share" />}
      <small>{facts.filter(text => text !== '').join(' · ')}</small>
      {silent === 0 ? null : (
        <small class="problem">{`${silent} of ${connections} connections had no reply in the last minute`}</small>
      )}
    </li>
  )
}
