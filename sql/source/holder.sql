-- The session for which other relays of slot $1 wait: the walsender that streams from the slot, or the session that reads the table
-- ($2, $3: its advisory lock). One row, one JSON text, null if there is none. Without pg_monitor, another role's session
-- has no application and no client here.
-- Any role may take an advisory lock. A stranger is a role that is not the relay's and shares no role with it, not even through
-- a common group of the operator's own (from OID 16384 on); a superuser's implied memberships do not count.
with role as (
    select r.oid from pg_catalog.pg_roles r where r.rolname = current_user
),
groups as (
    select role.oid from role
    union
    select m.roleid from role join pg_catalog.pg_auth_members m on m.member = role.oid where m.roleid >= 16384
)
select coalesce(
    (
        select pg_catalog.jsonb_build_object(
            'pid', h.pid,
            'streams', h.streams,
            'application', nullif(h.application_name, ''),
            'client', pg_catalog.host(h.client_addr),
            'stranger', case when h.is_stranger then h.usename::text end
        )
        from (
            select s.active_pid as pid, true as streams, false as is_stranger, a.application_name, a.client_addr, a.usename
            from pg_catalog.pg_replication_slots s
            left join pg_catalog.pg_stat_activity a on a.pid = s.active_pid
            where s.slot_name = $1 and s.active_pid is not null
            union all
            select l.pid, false, x.is_stranger, a.application_name, a.client_addr, a.usename
            from pg_catalog.pg_locks l
            left join pg_catalog.pg_stat_activity a on a.pid = l.pid
            cross join lateral (
                select a.usesysid is not null
                    and a.usesysid not in (select g.oid from groups g)
                    and not exists (
                        select from pg_catalog.pg_auth_members m
                        where m.member = a.usesysid and m.roleid in (select g.oid from groups g)
                    ) as is_stranger
            ) x
            where l.locktype = 'advisory' and l.classid = $2::int4::oid and l.objid = $3::int4::oid and l.objsubid = 2
                and (l.mode = 'ExclusiveLock' or x.is_stranger) and l.granted
                and l.database = (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())
        ) h
        order by h.is_stranger, h.streams desc
        limit 1
    ),
    'null'
)::text
